package release

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocni "github.com/containerd/go-cni"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netns"
)

// pods is the most common kind of network. Its backends are named, so that
// built-in plugins and executables find each other's rules.
const pods = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [
	{"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "ipMasq": true, "ipMasqBackend": "iptables",
	 "ipam": {"type": "host-local", "dataDir": "IPAM", "ranges": [[{"subnet": "10.77.0.0/24"}], [{"subnet": "fd77::/64"}]]}},
	{"type": "firewall", "backend": "iptables"},
	{"type": "tuning", "mtu": 1400, "dataDir": "IPAM"},
	{"type": "bandwidth", "capabilities": {"bandwidth": true}},
	{"type": "portmap", "backend": "iptables", "capabilities": {"portMappings": true}}]}`

// The other kinds of interfaces, and the other packet filter.
const (
	point = `{"cniVersion": "1.0.0", "name": "point", "plugins": [{"type": "ptp", "ipMasq": true, "ipMasqBackend": "nftables",
		"ipam": {"type": "host-local", "dataDir": "IPAM", "ranges": [[{"subnet": "10.78.0.0/24"}], [{"subnet": "fd78::/64"}]]}},
		{"type": "portmap", "backend": "nftables", "capabilities": {"portMappings": true}}]}`
	macvlan = `{"cniVersion": "1.0.0", "name": "lan", "plugins": [{"type": "macvlan", "master": "up0",
		"ipam": {"type": "host-local", "dataDir": "IPAM", "ranges": [[{"subnet": "10.79.0.0/24"}]]}}]}`
)

func theirOptions(n int) []gocni.NamespaceOpts {
	return []gocni.NamespaceOpts{
		gocni.WithCapabilityPortMap([]gocni.PortMapping{{HostPort: int32(8000 + n), ContainerPort: 80, Protocol: "tcp"}}),
		gocni.WithCapabilityBandWidth(gocni.BandWidth{IngressRate: 8e6, IngressBurst: 8e6, EgressRate: 4e6, EgressBurst: 4e6}),
		gocni.WithLabels(map[string]string{"IgnoreUnknown": "1", "K8S_POD_NAME": fmt.Sprint("pod", n)}),
	}
}

func ourOptions(n int) []cni.NamespaceOpts {
	return []cni.NamespaceOpts{
		cni.WithCapabilityPortMap([]cni.PortMapping{{HostPort: int32(8000 + n), ContainerPort: 80, Protocol: "tcp"}}),
		cni.WithCapabilityBandWidth(cni.BandWidth{IngressRate: 8e6, IngressBurst: 8e6, EgressRate: 4e6, EgressBurst: 4e6}),
		cni.WithLabels(map[string]string{"IgnoreUnknown": "1", "K8S_POD_NAME": fmt.Sprint("pod", n)}),
	}
}

// scenario defines how the containers are attached, and their number.
type scenario struct {
	name       string
	lists      []string
	count      int
	opts       []cni.Opt
	afterwards bool // the executables are installed after the ADDs
}

func scenarios() []scenario {
	all := []string{pods, point, macvlan}
	return []scenario{
		{"executables", []string{pods}, 20, []cni.Opt{cni.WithoutBuiltinPlugins()}, false},
		{"built-in plugins preferred", []string{pods}, 20, []cni.Opt{cni.WithBuiltinPlugins()}, false},
		{"three networks, executables", all, 3, nil, false},
		{"three networks, built-in plugins preferred", all, 3, []cni.Opt{cni.WithBuiltinPlugins()}, false},
		{"three networks, some built-in plugins preferred", all, 3, []cni.Opt{cni.WithBuiltinPlugins("ptp", "portmap", "host-local", "tuning")}, false},
		{"three networks, executables installed afterwards", all, 3, nil, true},
	}
}

// setUp attaches the scenario's containers with this library, and returns the
// earlier audit.
func (s scenario) setUp(h *host) (all []container, before audit.Lines) {
	h.T.Helper()
	if !s.afterwards {
		h.install()
	}
	before = h.audit()
	r := h.ours(s.lists, s.opts...)
	for n := range s.count {
		c := h.container(n)
		_, err := r.SetupSerially(h.T.Context(), c.id, c.path, ourOptions(n)...)
		expect.NoError(h.T, err)
		all = append(all, c)
	}
	if s.afterwards {
		h.install()
	}
	return all, before
}

// removeByGoCNI ends the containers, as a runtime with go-cni does.
func (s scenario) removeByGoCNI(h *host, all []container) {
	h.T.Helper()
	theirs := h.theirs(s.lists...)
	for n, c := range all {
		expect.NoError(h.T, theirs.Remove(h.T.Context(), c.id, c.path, theirOptions(n)...))
		c.end(h.T)
	}
}

// TestFault_F34_BackToGoCNIKeepsNamespacesAlive shows the purpose of Release.
// Without it the pins outlive the containers.
func TestFault_F34_BackToGoCNIKeepsNamespacesAlive(t *testing.T) {
	h := newHost(t)
	s := scenarios()[0]
	all, _ := s.setUp(h)
	s.removeByGoCNI(h, all)
	pins, err := filepath.Glob(filepath.Join(pinDir, "[0-9a-f]*"))
	expect.NoError(t, err)
	if got := alive(t, all, len(all)); got != len(all) || len(pins) != len(all) {
		t.Errorf("without Release %d of %d namespaces live, by %d pins", got, len(all), len(pins))
	}
}

// TestFault_F34_ReleasedContainersAreGoCNIs: after Release, go-cni removes each
// container completely, and its namespace ends.
func TestFault_F34_ReleasedContainersAreGoCNIs(t *testing.T) {
	for _, s := range scenarios() {
		t.Run(s.name, func(t *testing.T) {
			h := newHost(t)
			all, before := s.setUp(h)
			attached := h.audit()
			r := h.ours(s.lists) // the program was restarted without preferences
			wantReleased(t, r, all)
			pinned := func(l string) bool { return strings.HasPrefix(l, "netns "+pinDir) }
			if pins := len(attached) - len(attached.Without(pinned)); pins != len(all) {
				t.Errorf("%d containers had %d pins", len(all), pins)
			}
			if added, gone := audit.Diff(attached.Without(pinned), h.audit()); len(added)+len(gone) > 0 {
				t.Errorf("Release has made %q, and removed %q", added, gone)
			}
			s.removeByGoCNI(h, all)
			if got := alive(t, all, 0); got != 0 {
				t.Errorf("%d of %d namespaces live", got, len(all))
			}
			h.wantClean(before)
			wantReleased(t, r, nil)
		})
	}
}

// wantReleased checks that exactly these containers are released.
func wantReleased(t *testing.T, r *cni.Runtime, all []container) {
	t.Helper()
	report, err := r.Release(context.Background(), cni.ReleaseOptions{})
	expect.NoError(t, err)
	var ids []string
	for _, c := range all {
		ids = append(ids, c.id)
	}
	slices.Sort(ids)
	if !slices.Equal(report.Released, ids) || len(report.Refused) > 0 {
		t.Fatalf("released %q, want %q, refused: %v", report.Released, ids, report.Err())
	}
}

// TestFault_F34_UpgradeFromGoCNIAndBack: this library checks and removes
// go-cni's containers. It attaches others beside them and releases those to
// go-cni, which removes the rest.
func TestFault_F34_UpgradeFromGoCNIAndBack(t *testing.T) {
	for _, opt := range []cni.Opt{cni.WithoutBuiltinPlugins(), cni.WithBuiltinPlugins()} {
		t.Run(fmt.Sprintf("%p", opt), func(t *testing.T) {
			h := newHost(t)
			h.install()
			lists := []string{pods, point, macvlan}
			before := h.audit()
			theirs, ours := h.theirs(lists...), h.ours(lists, opt)
			var all []container
			for n := range 6 {
				c := h.container(n)
				all = append(all, c)
				_, err := theirs.SetupSerially(t.Context(), c.id, c.path, theirOptions(n)...)
				expect.NoError(t, err)
			}
			for _, c := range all {
				expect.NoError(t, ours.Check(t.Context(), c.id, c.path))
			}
			for _, c := range all[:3] {
				expect.NoError(t, ours.Remove(t.Context(), c.id, c.path))
				c.end(t)
			}
			for n := 6; n < 9; n++ {
				c := h.container(n)
				all = append(all, c)
				_, err := ours.SetupSerially(t.Context(), c.id, c.path, ourOptions(n)...)
				expect.NoError(t, err)
			}
			wantReleased(t, ours, all[6:])
			for n := 3; n < 9; n++ {
				expect.NoError(t, theirs.Remove(t.Context(), all[n].id, all[n].path, theirOptions(n)...))
				all[n].end(t)
			}
			if got := alive(t, all, 0); got != 0 {
				t.Errorf("%d of %d namespaces live", got, len(all))
			}
			h.wantClean(before)
		})
	}
}

// TestFault_F34_GCLeavesReleasedContainersAlone: a GC of this library, by a
// program that was not stopped, removes no part of a released container, even
// if libcni's cache no longer lists it.
func TestFault_F34_GCLeavesReleasedContainersAlone(t *testing.T) {
	h := newHost(t)
	s := scenario{lists: []string{pods}, count: 2}
	all, before := s.setUp(h)
	r := h.ours(s.lists)
	wantReleased(t, r, all)
	released := h.audit()
	cache, away := filepath.Join(stateDir, "results"), filepath.Join(stateDir, "results.away")
	expect.NoError(t, os.Rename(cache, away))
	for range 2 {
		report, err := r.GC(t.Context(), cni.GCOptions{KeepNone: true})
		expect.NoError(t, err)
		if len(report.Removed)+len(report.Reclaimed)+len(report.Failed) > 0 {
			t.Errorf("GC removed %q, reclaimed %q, failed for %v", report.Removed, report.Reclaimed, report.Err())
		}
		recovered, err := r.Recover(t.Context())
		expect.NoError(t, err)
		if len(recovered.Adopted)+len(recovered.Removed) > 0 {
			t.Errorf("Recover: %+v", recovered)
		}
	}
	expect.NoError(t, os.Rename(away, cache))
	h.wantClean(released)
	s.removeByGoCNI(h, all)
	if got := alive(t, all, 0); got != 0 {
		t.Errorf("%d of %d namespaces live", got, len(all))
	}
	h.wantClean(before)
	_, err := netns.Open(all[0].path)
	if err == nil {
		t.Error("the path is there still")
	}
}

// TestReleaseRefusesContainersWithLeftoversUnderGoCNI covers the refusals in which go-cni
// would report success.
func TestReleaseRefusesContainersWithLeftoversUnderGoCNI(t *testing.T) {
	const plain = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [
		{"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "ipMasq": true,
		 "ipam": {"type": "host-local", "dataDir": "IPAM", "ranges": [[{"subnet": "10.77.0.0/24"}]]}},
		{"type": "portmap", "capabilities": {"portMappings": true}}, {"type": "firewall", "backend": "iptables"}]}`
	results := filepath.Join(stateDir, "results")
	for _, tt := range []struct {
		name  string
		list  string
		opts  []cni.Opt
		spoil func() error
		left  string // go-cni's leftovers
	}{
		{"our table", plain, []cni.Opt{cni.WithBuiltinPlugins()}, func() error { return nil }, "nft element inet embedcni "},
		{"no cached result", pods, nil, func() error { return os.RemoveAll(results) }, "filter -A CNI-FORWARD -s 10.77.0.2/32 -j ACCEPT"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t)
			h.install()
			r := h.ours([]string{tt.list}, tt.opts...)
			before := h.audit()
			c := h.container(0)
			_, err := r.SetupSerially(t.Context(), c.id, c.path, ourOptions(0)...)
			expect.NoError(t, err)
			expect.NoError(t, tt.spoil())
			report, err := r.Release(t.Context(), cni.ReleaseOptions{})
			expect.NoError(t, err)
			if len(report.Released) > 0 || report.Refused[c.id] == nil {
				t.Errorf("released %q, refused %v", report.Released, report.Refused)
			}
			expect.NoError(t, h.theirs(tt.list).Remove(t.Context(), c.id, c.path, theirOptions(0)...))
			left, _ := audit.Diff(before, h.audit())
			if !slices.ContainsFunc(left, func(l string) bool { return strings.Contains(l, tt.left) }) {
				t.Errorf("go-cni leaves no %q, but %q", tt.left, left)
			}
			expect.NoError(t, r.Remove(t.Context(), c.id, c.path))
			c.end(t)
			h.wantClean(before)
		})
	}
}
