package cnitest_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/cnitest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/netns"
)

// host is a network namespace that stands for a host, with a Runtime.
type host struct {
	t   *testing.T
	dir string
	*cni.Runtime
}

func newHost(t *testing.T, plugins string) *host {
	t.Helper()
	dir := t.TempDir()
	h := &host{t: t, dir: dir}
	nettest.Enter(t, h.newNetNS("host"))
	bin, err := refplugins.Dir(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	ipam := fmt.Sprintf(`{"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.7.0.0/24"}], [{"subnet": "fd07::/64"}]]}`,
		filepath.Join(dir, "ipam"))
	conf := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "podnet", "plugins": [%s]}`, strings.ReplaceAll(plugins, "IPAM", ipam))
	h.Runtime, err = cni.New(cni.WithStateDir(filepath.Join(dir, "state")), cni.WithPluginDir([]string{bin}),
		cni.WithConfListBytes([]byte(conf)))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// newNetNS makes a namespace that is there until the test ends. It is spared
// the detection of duplicate addresses, for which plugins wait seconds.
func (h *host) newNetNS(name string) *netns.Handle {
	h.t.Helper()
	ns := nettest.At(h.t, filepath.Join(h.dir, "netns", name))
	expect.NoError(h.t, ns.Do(nettest.NoAddressDetection))
	return ns
}

// attach makes a container, which is detached when the test ends.
func (h *host) attach(id string, port int32) *cni.Result {
	h.t.Helper()
	h.newNetNS(id)
	path := filepath.Join(h.dir, "netns", id)
	result, err := h.Setup(context.Background(), id, path,
		cni.WithCapabilityPortMap([]cni.PortMapping{{HostPort: port, ContainerPort: 80, Protocol: "tcp"}}))
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() {
		if err := h.Remove(context.Background(), id, path); err != nil {
			h.t.Error(err)
		}
	})
	return result
}

// audit leaves out the mounts that are the tests' own.
func (h *host) audit(of []cnitest.Attachment) []string {
	h.t.Helper()
	lines, err := cnitest.Audit(context.Background(), cnitest.Options{
		StateDirs: []string{filepath.Join(h.dir, "ipam"), filepath.Join(h.dir, "state")}, NetNSDirs: []string{}, Of: of,
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return slices.DeleteFunc(lines, func(line string) bool {
		return strings.HasPrefix(line, "mount ") && !strings.HasPrefix(line, "mount nsfs "+filepath.Join(h.dir, "state"))
	})
}

// What is about a container is exactly what has come with it.
func TestAuditOfAContainerIsWhatCameWithIt(t *testing.T) {
	for name, plugins := range map[string]string{
		"iptables": `{"type": "bridge", "bridge": "br7", "isDefaultGateway": true, "ipMasq": true, "ipam": IPAM},
			{"type": "portmap", "backend": "iptables", "capabilities": {"portMappings": true}},
			{"type": "bandwidth", "ingressRate": 8000000, "ingressBurst": 8000000, "egressRate": 8000000, "egressBurst": 8000000},
			{"type": "firewall", "backend": "iptables"}`,
		"nftables": `{"type": "bridge", "bridge": "br7", "isDefaultGateway": true, "ipMasq": true, "ipMasqBackend": "nftables", "macspoofchk": true, "ipam": IPAM},
			{"type": "portmap", "backend": "nftables", "capabilities": {"portMappings": true}}`,
		"ptp": `{"type": "ptp", "ipMasq": true, "ipam": IPAM}, {"type": "portmap", "backend": "iptables", "capabilities": {"portMappings": true}}`,
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, plugins)
			h.attach("c11", 8081)
			before := h.audit(nil)
			of := cnitest.Attachments("c1", h.attach("c1", 8080))
			came := cnitest.Diff(before, h.audit(nil))
			if len(of) != 1 || strings.Contains(came, "\n- ") || strings.Count(came, "\n") < 10 {
				t.Fatalf("attachments %+v, and there came\n%s", of, came)
			}
			if got := cnitest.Diff(nil, h.audit(of)); got != came {
				t.Errorf("about c1:\n%s\nwith c1 came:\n%s", got, came)
			}
		})
	}
}

func TestAuditFindsHeldAddressesByItself(t *testing.T) {
	h := newHost(t, `{"type": "ptp", "ipMasq": true, "ipam": IPAM}`)
	h.attach("c11", 8081)
	whole := cnitest.Attachments("c1", h.attach("c1", 8080))
	bare := []cnitest.Attachment{{ContainerID: "c1", Network: "podnet", IfName: "eth0", Links: whole[0].Links}}
	if diff := cnitest.Diff(h.audit(whole), h.audit(bare)); diff != "" {
		t.Error(diff)
	}
}

func TestAuditAddsWhatIsAskedFor(t *testing.T) {
	h := newHost(t, `{"type": "bridge", "bridge": "br7", "isDefaultGateway": true, "ipam": IPAM}`)
	h.attach("c1", 8080)
	count := func(o cnitest.Options, prefix string) int {
		o.StateDirs, o.NetNSDirs = []string{filepath.Join(h.dir, "state")}, []string{filepath.Join(h.dir, "netns")}
		lines, err := cnitest.Audit(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, line := range lines {
			if strings.HasPrefix(line, prefix) {
				n++
			}
		}
		return n
	}
	for _, c := range []struct {
		prefix  string
		options cnitest.Options
		without int
	}{
		{prefix: "link br7 ", options: cnitest.Options{Shared: true}},
		{prefix: "file " + filepath.Join(h.dir, "state/embedcni/locks"), options: cnitest.Options{Shared: true}},
		{prefix: "fd ", options: cnitest.Options{Process: true}},
	} {
		if without, with := count(cnitest.Options{}, c.prefix), count(c.options, c.prefix); without != 0 || with == 0 {
			t.Errorf("%q: %d lines, and %d with %+v", c.prefix, without, with, c.options)
		}
	}
	if got := count(cnitest.Options{}, "netns "+filepath.Join(h.dir, "netns")); got != 2 {
		t.Errorf("%d pinned namespaces, want the host's and the container's", got)
	}
}

func TestAttachmentsHaveWhatTheResultSays(t *testing.T) {
	result := &cni.Result{Networks: []*cni.NetworkResult{{Name: "podnet", IfName: "eth0", Interfaces: []*cni.Interface{
		{Name: "veth1"}, {Name: "eth0", Sandbox: "/run/netns/c1", Addresses: []cni.Address{{Prefix: netip.MustParsePrefix("10.7.0.2/24")}}},
	}}, {Name: "second", IfName: "eth1"}}}
	want := []string{
		"{c1 podnet eth0 [10.7.0.2] [veth1]}",
		"{c1 second eth1 [] []}",
	}
	var got []string
	for _, a := range cnitest.Attachments("c1", result) {
		got = append(got, fmt.Sprint(a))
	}
	if !slices.Equal(got, want) {
		t.Errorf("attachments %q, want %q", got, want)
	}
}
