package backend_test

import (
	"fmt"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/thick/backend"
	"github.com/embedcni/cni/thick/server"
)

// TestADELAtTheHostsNamespaceEnds: CNI_NETNS was /proc/PID/ns/net of a process that has ended,
// and its number is that of a process of the host by now. A runtime repeats the DEL until it
// succeeds.
func TestADELAtTheHostsNamespaceEnds(t *testing.T) {
	s := newStage(t)
	b := backend.New(s.runtime, backend.Options{})
	config := delegating("node", delegate("", "p"), delegate("more", "q"))
	for _, name := range []string{"eth0", "net1"} {
		s.AddLink("host", name) // as the container's are named
	}
	for i, host := range []string{s.Path("netns", "host"), "/proc/self/ns/net"} {
		lives, gone, never := s.request(fmt.Sprint("lives", i), "eth0", config), s.request(fmt.Sprint("gone", i), "eth0", config), s.request(fmt.Sprint("never", i), "eth0", config)
		container := lives.NetNS
		for _, r := range []*server.Request{lives, gone} {
			expect.Value(b.Add(t.Context(), r))(t)
			s.AddLink(r.ContainerID, "eth0")
			s.AddLink(r.ContainerID, "net1")
		}
		s.Took()
		before := s.links("host")
		s.RemoveNetNS(gone.ContainerID)
		for _, r := range []*server.Request{lives, gone, never} {
			r.NetNS = host
			expect.NoError(t, b.Del(t.Context(), r))
			calls := s.TakeCalls()
			for _, c := range calls {
				expect.That(t, c.NetNS != host, "%s: a plugin got the host's namespace", r.ContainerID)
				expect.That(t, r != lives || c.NetNS == container, "a plugin got %s instead of the container's namespace", c.NetNS)
			}
			expect.Same(t, r.ContainerID, testhost.Rendered(calls), []string{
				"DEL q " + r.ContainerID + "/net1", "DEL p " + r.ContainerID + "/eth0",
			})
		}
		expect.Same(t, "interfaces of the host", s.links("host"), before)
	}
	expect.Same(t, "recorded", len(s.recorded()), 0)
}
