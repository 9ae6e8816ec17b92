package cni_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

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
	expect.Same(t, "watches of the records", watches(t, s.Path("state", "embedcni", "attachments")), 1)
	if n := watches(t, s.Path("state", "results")); n > 1 { // none, if it was not listed since it had many files
		t.Errorf("%d watches of libcni's cache", n)
	}
	for i, r := range append(all, first) {
		var taken *cni.PortError
		err := attach(r, fmt.Sprint("e", i), 9004)
		expect.That(t, errors.As(err, &taken) && taken.ContainerID == "c4", "Runtime %d gives the port of c4: %v", i, err)
	}
}

// TestRuntimesSearchTogether: a Runtime for each container would otherwise read all records
// as often as there are containers.
func TestRuntimesSearchTogether(t *testing.T) {
	t.Setenv("EMBEDCNI_TEST", "1")
	s := testhost.NewStage(t)
	first := s.Runtime()
	for what, test := range map[string]struct {
		other *cni.Runtime
		want  bool
	}{
		"the same settings":    {s.Runtime(), true},
		"other networks":       {s.Runtime(cni.WithLoNetwork), true},
		"another owner":        {s.Runtime(cni.WithOwner("another")), false},
		"other records":        {s.Runtime(cni.WithStateDir(s.Path("elsewhere"))), false},
		"other plugins":        {s.Runtime(cni.WithPluginDir([]string{s.Path("elsewhere")})), false},
		"another host":         {s.Runtime(cni.WithHostNetNS(s.Path("elsewhere"))), false},
		"another environment":  {s.Runtime(cni.WithPluginEnv("EMBEDCNI_TEST")), false},
		"the caller's plugins": {s.Runtime(cni.WithPlugin("p", testhost.Idle{})), false},
	} {
		expect.Same(t, what, test.other.SearchesWith(first), test.want)
	}
}

// watches returns how many inotify instances of this process watch a directory; see
// proc_pid_fdinfo(5).
func watches(t *testing.T, dir string) (n int) {
	t.Helper()
	var st unix.Stat_t
	expect.NoError(t, unix.Stat(dir, &st))
	for _, info := range expect.Value(filepath.Glob("/proc/self/fdinfo/*"))(t) {
		text, err := os.ReadFile(info)
		if err == nil && strings.Contains(string(text), fmt.Sprintf("inotify wd:1 ino:%x ", st.Ino)) {
			n++ // a descriptor that is closed by now is none
		}
	}
	return n
}
