package cni_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/plugin"
)

// TestARuntimeForEachContainer: a scheduler may make one for each. The user may have 128
// inotify instances, of which other programs need some, so all Runtimes of the process
// have two at most: one for the records and one for libcni's cache. A port that a Runtime has given is known to all at once.
func TestARuntimeForEachContainer(t *testing.T) {
	s := testhost.NewStage(t)
	r := func() *cni.Runtime {
		return s.Runtime(cni.WithBuiltins(map[string]plugin.Plugin{"p": testhost.Acting{}}),
			cni.WithConfListBytes([]byte(`{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "p", "capabilities": {"portMappings": true}}]}`)))
	}
	attach := func(r *cni.Runtime, id string, port int) error {
		_, err := r.Setup(t.Context(), id, s.Container(id), cni.WithCapabilityPortMap([]cni.PortMapping{{HostPort: int32(port), ContainerPort: 80, Protocol: "tcp"}}))
		return err
	}
	before := watches(t)
	first := r()
	for i := range 70 { // more than are read without a watch
		expect.NoError(t, attach(first, fmt.Sprint("many", i), 8000+i))
	}
	var all []*cni.Runtime
	for i := range 5 {
		all = append(all, r())
		expect.NoError(t, attach(all[i], fmt.Sprint("c", i), 9000+i))
		expect.NoError(t, attach(all[i], fmt.Sprint("d", i), 9100+i))
	}
	if n := watches(t) - before; n < 1 || n > 2 { // the cache may not have been listed since it had many files
		t.Errorf("%d inotify instances", n)
	}
	for i, r := range append(all, first) {
		var taken *cni.PortError
		if err := attach(r, fmt.Sprint("e", i), 9004); !errors.As(err, &taken) || taken.ContainerID != "c4" {
			t.Errorf("Runtime %d gives the port of c4: %v", i, err)
		}
	}
}

// watches returns the number of this process's inotify instances.
func watches(t *testing.T) (n int) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	expect.NoError(t, err)
	for _, fd := range fds {
		if to, _ := os.Readlink(filepath.Join("/proc/self/fd", fd.Name())); to == "anon_inode:inotify" {
			n++ // a descriptor that is closed by now is none
		}
	}
	return n
}
