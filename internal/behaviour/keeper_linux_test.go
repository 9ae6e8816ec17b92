package behaviour_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

func TestANamespaceIsKeptByADescriptorWhereMountsAreNotAllowed(t *testing.T) {
	s, r, conf := inhabited(t)
	path := s.Container("c1")
	container := expect.Value(netns.Open(path))(t)
	id := container.ID()
	expect.NoError(t, container.Close())
	expect.NoError(t, testhost.UnableToMount(testhost.SetUp(t.Context(), r, "c1", path)))
	expect.Same(t, "pinned", s.Pinned("c1"), false)
	s.TakeCalls()
	s.RemoveNetNS("c1")

	done, letGo := s.heldUp("q", "DEL", func() error { return r.Remove(t.Context(), "c1", "") })
	told := s.TakeCalls()[0].NetNS
	if want := fmt.Sprintf("/proc/%d/fd/", os.Getpid()); !strings.HasPrefix(told, want) {
		t.Errorf("CNI_NETNS %q, want it to begin with %q", told, want)
	}
	kept := expect.Value(netns.Open(told))(t)
	expect.Same(t, "the namespace there", kept.ID(), id)
	expect.NoError(t, kept.Close())
	letGo()
	expect.NoError(t, expect.Await(t, "Remove", done))
	expect.Same(t, "on record", testhost.Recorded(t, s.restarted(conf)), []string{})
}

func TestADescriptorDoesNotOutliveTheProcess(t *testing.T) {
	s, r, conf := inhabited(t)
	expect.NoError(t, testhost.UnableToMount(testhost.SetUp(t.Context(), r, "c1", s.Container("c1"))))
	s.TakeCalls()
	s.RemoveNetNS("c1")
	testhost.WantRecover(t, s.restarted(conf), removed)
	calls := s.TakeCalls()
	expect.Same(t, "calls", testhost.Rendered(calls), []string{"DEL q c1/eth0", "DEL p c1/eth0"})
	expect.Same(t, "CNI_NETNS", calls[0].NetNS, "")
	expect.NoError(t, r.Remove(t.Context(), "c1", "")) // closes the descriptor
}
