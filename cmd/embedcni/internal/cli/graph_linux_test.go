package cli

import (
	"encoding/json"
	"encoding/xml"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/cmd/embedcni/internal/graph"
	"github.com/embedcni/cni/cnitest"
	"github.com/embedcni/cni/internal/expect"
)

// attach attaches containers for the owner of the command.
func (s *session) attach(ids ...string) {
	s.t.Helper()
	rt := s.host.Runtime(cni.WithDefaultConf, cni.WithOwner("embedcni"), cni.WithoutReaping())
	for _, id := range ids {
		_, err := rt.Setup(s.t.Context(), id, cnitest.Container(s.t), cni.WithPorts(cni.Port{ContainerPort: 80}))
		expect.NoError(s.t, err)
	}
}

// deleteLink deletes an interface of the host.
func (s *session) deleteLink(name string) {
	s.t.Helper()
	expect.NoError(s.t, s.host.Do(func() error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return netlink.LinkDel(link)
	}))
}

// The graph has what is on the host: containers with their addresses and ports, the bridge,
// and what is broken.
func TestGraph(t *testing.T) {
	s := newSession(t)
	s.attach("web-1", "web-2")
	s.deleteLink(s.hostEnd("web-2"))

	stdout, _ := s.want(exitOK, "graph", "--json", "--name", "node-1")
	var got graph.Host
	expect.NoError(t, json.Unmarshal([]byte(stdout), &got))
	expect.Must(t, len(got.Segments) == 1 && len(got.Segments[0].Members) == 2, "the graph is %s", stdout)
	pods0 := got.Segments[0]
	web := pods0.Members[0]
	expect.Same(t, "web-1", web, graph.Member{
		ContainerID: "web-1", Network: "pods", IfName: "eth0", HostIfName: s.hostEnd("web-1"), NetNS: web.NetNS, Owner: "embedcni",
		Addresses: []string{"10.1.0.2/24"}, Ports: []graph.Port{{HostPort: web.Ports[0].HostPort, ContainerPort: 80, Protocol: "tcp"}}, State: cni.StateHealthy,
	})
	expect.Same(t, "state of web-2", pods0.Members[1].State, cni.StateBroken)
	expect.Contains(t, "words of web-2", strings.Join(pods0.Members[1].Words, "\n"), "interface eth0 in the container is missing (not repairable)")
	pods0.Members = nil
	expect.Same(t, "bridge", pods0, graph.Segment{Bridge: "pods0", Kind: "bridge", Networks: []string{"pods"}, Addresses: []string{"10.1.0.1/24"}})

	file := filepath.Join(t.TempDir(), "networks.svg")
	s.want(exitOK, "graph", "-o", file)
	svg, err := os.ReadFile(file)
	expect.NoError(t, err)
	expect.NoError(t, xml.Unmarshal(svg, new(struct{ XMLName xml.Name })))
	expect.Contains(t, "SVG", string(svg), "web-1", "10.1.0.3/24", "pods0", ">broken<")
	dot, _ := s.want(exitOK, "graph", "--format", "dot")
	expect.Contains(t, "DOT", dot, `graph "host `, `label="web-2\n10.1.0.3/24\nbroken\n`)

	// Others' containers are shown if that is asked for.
	stdout, stderr := s.want(exitOK, "graph", "--json", "--owner", "nomad")
	expect.Same(t, "stderr", stderr, "Not shown: 2 attachments of embedcni. See --all-owners.\n")
	expect.Lacks(t, "graph of nomad", stdout, "web-1")
	stdout, _ = s.want(exitOK, "graph", "--json", "--owner", "nomad", "--all-owners")
	expect.Contains(t, "graph of all", stdout, "web-1", "web-2")
	_, stderr = s.want(exitUsage, "graph", "--format", "gif")
	expect.Contains(t, "error", stderr, `--format "gif" is neither svg nor dot`)
}

// Without a configuration and without containers there is a picture that says so.
func TestGraphOfNothing(t *testing.T) {
	s := newSession(t)
	expect.NoError(t, os.RemoveAll(s.host.ConfDir))
	stdout, stderr := s.want(exitOK, "graph")
	expect.Contains(t, "SVG", stdout, "no network is loaded, and no container is on record")
	expect.Same(t, "stderr", stderr, "")

	expect.NoError(t, os.Mkdir(s.host.ConfDir, 0o755))
	s.host.WriteConf("10-bad.conflist", "{")
	stdout, stderr = s.want(exitOK, "graph")
	expect.Contains(t, "stderr", stderr, "are not known: ", "10-bad.conflist")
	expect.Contains(t, "SVG", stdout, "no network is loaded")
}
