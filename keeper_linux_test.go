package cni_test

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/netns"
)

// unableToMount runs f on a thread of its own that may not mount. The thread
// ends with it.
func unableToMount(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		err := unix.Capget(&header, &data[0])
		if err == nil {
			data[0].Effective &^= 1 << unix.CAP_SYS_ADMIN
			err = unix.Capset(&header, &data[0])
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

func TestANamespaceIsKeptByADescriptorWhereMountsAreNotAllowed(t *testing.T) {
	s, r, conf := inhabited(t)
	path := s.container("c1")
	container, err := netns.Open(path)
	wantNil(t, err)
	id := container.ID()
	wantNil(t, container.Close())
	wantNil(t, unableToMount(setUp(t.Context(), r, "c1", path)))
	wantSame(t, "pinned", s.pinned("c1"), false)
	s.takeCalls()
	s.forget("c1")

	gate := s.gate("p")
	s.on("q", "DEL", scripted.Action{Block: gate})
	done := begin(func() error { return r.Remove(t.Context(), "c1", "") })
	letGo := s.arrive(gate)
	told := s.takeCalls()[0].NetNS
	if want := fmt.Sprintf("/proc/%d/fd/", os.Getpid()); !strings.HasPrefix(told, want) {
		t.Errorf("CNI_NETNS %q, want it to begin with %q", told, want)
	}
	kept, err := netns.Open(told)
	wantNil(t, err)
	wantSame(t, "the namespace there", kept.ID(), id)
	wantNil(t, kept.Close())
	letGo()
	wantNil(t, await(t, "Remove", done))
	wantSame(t, "on record", recorded(t, s.restarted(conf)), []string{})
}

func TestADescriptorDoesNotOutliveTheProcess(t *testing.T) {
	s, r, conf := inhabited(t)
	wantNil(t, unableToMount(setUp(t.Context(), r, "c1", s.container("c1"))))
	s.takeCalls()
	s.forget("c1")
	recoverWith(t, s.restarted(conf), removed)
	calls := s.takeCalls()
	wantSame(t, "calls", rendered(calls), []string{"DEL q c1/eth0", "DEL p c1/eth0"})
	wantSame(t, "CNI_NETNS", calls[0].NetNS, "")
	wantNil(t, r.Remove(t.Context(), "c1", "")) // closes the descriptor
}
