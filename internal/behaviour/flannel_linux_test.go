package behaviour_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
)

// kubeFlannel is the file 10-flannel.conflist of kube-flannel.yml.
const kubeFlannel = `{
  "name": "cbr0",
  "cniVersion": "0.3.1",
  "plugins": [
    {
      "type": "flannel",
      "delegate": {
        "hairpinMode": true,
        "isDefaultGateway": true
      }
    },
    {
      "type": "portmap",
      "capabilities": {
        "portMappings": true
      }
    }
  ]
}
`

const (
	leaseV4 = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\n"
	leaseV6 = "FLANNEL_IPV6_NETWORK=fd00:10:244::/56\nFLANNEL_IPV6_SUBNET=fd00:10:244:1::1/64\n"
	lease   = leaseV4 + leaseV6 + "FLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n"
)

// node is a host with flannel's file.
type node struct {
	*realHost
	subnetFile string
}

// newNode returns a host with a lease. Its files are in the host's directory.
func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{newRealHost(t), ""}
	n.subnetFile = n.Path("subnet.env")
	expect.NoError(t, os.Mkdir(n.Path("ipam"), 0o755))
	n.lease(lease)
	return n
}

func (n *node) lease(text string) {
	n.T.Helper()
	expect.NoError(n.T, os.WriteFile(n.subnetFile, []byte(text), 0o644))
}

// conf returns flannel's network with files in the host's directory, and more plugins.
func (n *node) conf(version, members string, more ...string) []byte {
	flannel := fmt.Sprintf(`{"type": "flannel", "subnetFile": %q, "dataDir": %q, "ipam": {"dataDir": %q}%s}`,
		n.subnetFile, n.Path("ipam", "flannel"), n.Path("ipam"), members)
	return fmt.Appendf(nil, `{"cniVersion": %q, "name": "pods", "plugins": [%s]}`, version, strings.Join(append([]string{flannel}, more...), ", "))
}

func (n *node) kept(id string) string { return n.Path("ipam", "flannel", id) }

// builtIn returns a Runtime without executables.
func (n *node) builtIn(opts ...cni.Opt) *cni.Runtime {
	n.T.Helper()
	return n.Runtime(append([]cni.Opt{cni.WithBuiltinPlugins(), cni.WithPluginDir(nil)}, opts...)...)
}

// verdict returns the verdict on a container.
func (n *node) verdict(r *cni.Runtime, id string) cni.Health {
	n.T.Helper()
	all := expect.Value(r.Health(n.T.Context(), cni.HealthOptions{Containers: []string{id}}))(n.T)
	expect.Must(n.T, len(all) == 1, "verdicts %v", all)
	return all[0]
}

// differences returns the parts that differ, as "PLUGIN KIND".
func differences(v cni.Health) (all []string) {
	for _, d := range v.Differences {
		all = append(all, d.Plugin+" "+d.Kind)
	}
	return all
}

// TestKubeFlannelsConflistRunsUnmodified without executables, with its files where flannel
// and Kubernetes have them.
func TestKubeFlannelsConflistRunsUnmodified(t *testing.T) {
	n := newNode(t)
	n.subnetFile = "/run/flannel/subnet.env"
	t.Cleanup(func() { expect.NoError(t, os.RemoveAll("/run/flannel"), os.RemoveAll("/var/lib/cni")) })
	expect.NoError(t, os.Mkdir("/run/flannel", 0o755))
	r := n.builtIn(cni.WithConfListBytes([]byte(kubeFlannel)))
	files := func() audit.Lines {
		all := expect.Value(audit.Snapshot(t.Context(), audit.Options{StateDirs: []string{"/var/lib/cni"}, WithoutProcess: true, Complete: true}))(t)
		return all.Without(audit.Shared)
	}
	path, before, clean := n.Container("c1"), files(), n.Audit()

	_, err := r.Setup(t.Context(), "c1", path)
	expect.Says(t, "without a lease", err, "flanneld has not written its lease yet: open /run/flannel/subnet.env: no such file or directory")
	expect.Same(t, "files after it", files(), before)
	expect.Says(t, "ready", r.Ready(t.Context()), "flanneld has not written its lease yet: open /run/flannel/subnet.env: no such file or directory (code 50)")

	n.lease(lease)
	expect.NoError(t, r.Ready(t.Context()))
	result := testhost.MustSetUp(t, r, "c1", path, testhost.MapPort(8080))
	var addresses []netip.Addr
	for _, a := range expect.Value(r.Attachments("c1"))(t)[0].Addresses {
		addresses = append(addresses, a.IP())
	}
	expect.Same(t, "addresses", fmt.Sprint(addresses), "[10.244.1.2 fd00:10:244:1::2]")
	expect.Same(t, "MTU", n.Link(path, "eth0").Attrs().MTU, 1450)
	expect.Same(t, "interfaces", len(result.Interfaces) > 0, true)
	expect.Same(t, "kept", expect.JSON(t, expect.Value(os.ReadFile("/var/lib/cni/flannel/c1"))(t)), expect.JSON(t, `{
		"cniVersion": "0.3.1", "name": "cbr0", "type": "bridge", "hairpinMode": true, "isDefaultGateway": true, "isGateway": true, "ipMasq": true, "mtu": 1450,
		"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.1.0/24"}], [{"subnet": "fd00:10:244:1::/64"}]],
			"routes": [{"dst": "10.244.0.0/16"}, {"dst": "fd00:10:244::/56"}]}}`))
	kinds := expect.Value(r.Attachments("c1"))(t)[0].Plugins
	expect.Same(t, "plugins", kinds, map[string]string{"flannel": "built in", "portmap": "built in", "bridge": "built in", "host-local": "built in"})

	v := n.verdict(r, "c1")
	expect.Same(t, "health", fmt.Sprint(v.State, differences(v), v.Reason), fmt.Sprint(cni.StateHealthy, []string(nil), nil))
	expect.NoError(t, netlink.LinkDel(n.Link("", "cni0")))
	v = n.verdict(r, "c1")
	expect.Same(t, "a missing bridge", slices.Contains(differences(v), "bridge bridge"), true)
	expect.NoError(t, expect.Reported(r.Repair(t.Context(), "c1", cni.RepairOptions{})))
	v = n.verdict(r, "c1")
	expect.Same(t, "health after the repair", fmt.Sprint(v.State, differences(v)), fmt.Sprint(cni.StateHealthy, []string(nil)))

	expect.NoError(t, r.Remove(t.Context(), "c1", path))
	n.WantClean(clean)
	expect.Same(t, "files at the end", files(), before)
}

// TestAnotherLeaseIsADifference that only a new attachment ends, and the container can be
// attached anew.
func TestAnotherLeaseIsADifference(t *testing.T) {
	n := newNode(t)
	r := n.builtIn(cni.WithConfListBytes(n.conf("1.1.0", `, "delegate": {"isDefaultGateway": true, "forceAddress": true}`)))
	path := n.Container("c1")
	testhost.MustSetUp(t, r, "c1", path)
	expect.NoError(t, r.Check(t.Context(), "c1", path))
	n.lease(strings.ReplaceAll(lease, "10.244.1.1", "10.244.7.1"))
	const says = "the address 10.244.1.2 is in the subnet 10.244.1.0/24, which was this host's, and "
	expect.Says(t, "CHECK", r.Check(t.Context(), "c1", path), says)
	for _, v := range []cni.Health{n.verdict(r, "c1"), n.verdict(n.builtIn(), "c1")} {
		expect.Must(t, v.State == cni.StateBroken && len(v.Differences) == 1, "health %v, %v", v.State, v.Differences)
		d := v.Differences[0]
		expect.Says(t, "difference", d.Err, says)
		expect.Says(t, "difference", d.Err, "names 10.244.7.0/24 and fd00:10:244:1::/64 now, so that other hosts send its packets elsewhere: "+
			"Remove and Setup attach the container again")
		d.Err = nil
		expect.Same(t, "difference", d, cni.Difference{Network: "pods", IfName: "eth0", Plugin: "flannel", Kind: "lease", Object: "10.244.1.2",
			Wanted: "10.244.1.0/24", Found: "10.244.7.0/24 and fd00:10:244:1::/64", Why: "an address of the new subnet needs another ADD: Remove and Setup attach the container again"})
	}
	expect.Is(t, expect.Reported(r.Repair(t.Context(), "c1", cni.RepairOptions{Inside: true})), cni.ErrNotRepairable)
	expect.NoError(t, r.Remove(t.Context(), "c1", path))
	testhost.MustSetUp(t, r, "c1", path)
	expect.NoError(t, r.Check(t.Context(), "c1", path), r.Remove(t.Context(), "c1", path))
}

// TestFlannelsFileIsLookedFor after a DEL that failed or never ran; files of others stay.
func TestFlannelsFileIsLookedFor(t *testing.T) {
	for what, spoil := range map[string]func(n *node){
		"torn":    func(n *node) { expect.NoError(n.T, os.Truncate(n.kept("c1"), 0)) },
		"missing": func(n *node) { expect.NoError(n.T, os.Remove(n.kept("c1"))) },
		"no lease any more": func(n *node) {
			expect.NoError(n.T, os.Remove(n.kept("c1")), os.Remove(n.subnetFile))
		},
	} {
		for _, force := range []bool{false, true} {
			t.Run(fmt.Sprint(what, " ", force), func(t *testing.T) {
				n := newNode(t)
				r := n.builtIn(cni.WithConfListBytes(n.conf("1.0.0", "")))
				path := n.Container("c1")
				expect.NoError(t, os.Mkdir(n.Path("ipam", "flannel"), 0o700), os.WriteFile(n.kept("other"), []byte(`{"name": "pods", "type": "bridge"}`), 0o600))
				before := n.Audit()
				testhost.MustSetUp(t, r, "c1", path)
				spoil(n)
				if force {
					found := expect.Value(n.Runtime().CleanUp(t.Context(), cni.CleanUpTarget{ContainerID: "c1", Network: "pods", IfName: "eth0"}))(t)
					expect.Same(t, "it has found the file", slices.Contains(found, "configuration of flannel's delegate in "+n.kept("c1")), what == "torn")
				} else {
					expect.NoError(t, r.Remove(t.Context(), "c1", path))
				}
				n.WantClean(before)
			})
		}
	}
}

// TestCleanUpFindsFlannelsFileByItsDefault, without any configuration.
func TestCleanUpFindsFlannelsFileByItsDefault(t *testing.T) {
	t.Cleanup(func() { expect.NoError(t, os.RemoveAll("/var/lib/cni")) })
	n := newNode(t)
	expect.NoError(t, os.MkdirAll("/var/lib/cni/flannel", 0o700))
	for id, network := range map[string]string{"c1": "pods", "c2": "pods", "c3": "others"} {
		expect.NoError(t, os.WriteFile("/var/lib/cni/flannel/"+id, fmt.Appendf(nil, `{"name": %q, "type": "bridge"}`, network), 0o600))
	}
	for id, want := range map[string][]string{"c1": {"configuration of flannel's delegate in /var/lib/cni/flannel/c1"}, "c3": nil} {
		found := expect.Value(n.builtIn().CleanUp(t.Context(), cni.CleanUpTarget{ContainerID: id, Network: "pods", IfName: "eth0"}))(t)
		expect.Same(t, "found of "+id, found, want)
	}
	left := expect.Value(filepath.Glob("/var/lib/cni/flannel/*"))(t)
	expect.Same(t, "left", left, []string{"/var/lib/cni/flannel/c2", "/var/lib/cni/flannel/c3"})
}

// TestGCReportsFlannelsFilesOfOthers, which may be those of another program's containers.
func TestGCReportsFlannelsFilesOfOthers(t *testing.T) {
	n := newNode(t)
	r := n.builtIn(cni.WithConfListBytes(n.conf("1.1.0", "")))
	testhost.MustSetUp(t, r, "c1", n.Container("c1"))
	testhost.MustSetUp(t, r, "c2", n.Container("c2"))
	expect.NoError(t, os.WriteFile(n.kept("other"), []byte(`{"name": "pods", "type": "bridge"}`), 0o600),
		os.WriteFile(n.kept("another"), []byte(`{"name": "theirs", "type": "bridge"}`), 0o600))
	report := expect.Value(r.GC(t.Context(), cni.GCOptions{Keep: []string{"c1"}}))(t)
	expect.Same(t, "report", *report, cni.Report{Adopted: []string{"c1"}, Removed: []string{"c2"}, Left: []string{
		fmt.Sprintf("network \"pods\": %s has flannel's configuration for a container that is on no record: another program may have "+
			"attached it; delete the file if the container is gone", n.kept("other"))}})
	left := expect.Value(filepath.Glob(n.kept("*")))(t)
	expect.Same(t, "left", left, []string{n.kept("another"), n.kept("c1"), n.kept("other")})
	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
}

// TestFlannelDelegatesToAnExecutable that is in a plugin directory; its DEL gets what its ADD
// got, and a failed one keeps everything.
func TestFlannelDelegatesToAnExecutable(t *testing.T) {
	s := newStage(t)
	h := &node{&realHost{&testhost.RealHost{Host: s.Host}}, s.Path("subnet.env")}
	expect.NoError(t, os.MkdirAll(s.Path("ipam"), 0o755))
	h.lease(lease)
	s.Network("net", "1.0.0", "vendor")
	conf := h.conf("1.0.0", fmt.Sprintf(`, "delegate": {"type": "vendor", "script": %q}`, s.Path("script-vendor")))
	r := s.Runtime(cni.WithBuiltinPlugins(), cni.WithConfListBytes(conf))
	s.On("vendor", "DEL", testhost.Says(11, "not now"))
	testhost.MustSetUp(t, r, "c1", s.Container("c1"))
	s.AddLink("c1", "eth0")
	err := r.Remove(t.Context(), "c1", "")
	expect.Says(t, "Remove", err, `delegate "vendor": not now`)
	expect.Same(t, "the file", expect.Exists(t, h.kept("c1")), true)
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{"c1/eth0 failed"})
	s.On("vendor", "DEL", scripted.Action{})
	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
	expect.Same(t, "the file", expect.Exists(t, h.kept("c1")), false)
	expect.Same(t, "calls", s.Took(), []string{"ADD vendor c1/eth0", "DEL vendor c1/eth0", "DEL vendor c1/eth0"})

	// A torn file names no delegate, so that only CleanUp can give it up.
	testhost.MustSetUp(t, r, "c1", s.Path("netns", "c1"))
	expect.NoError(t, os.Truncate(h.kept("c1"), 0))
	expect.Says(t, "Remove", r.Remove(t.Context(), "c1", ""), h.kept("c1")+": it has no configuration of a plugin")
	found := expect.Value(r.CleanUp(t.Context(), cni.CleanUpTarget{ContainerID: "c1", Network: "pods", IfName: "eth0"}))(t)
	expect.Same(t, "it has found the file", slices.Contains(found, "configuration of flannel's delegate in "+h.kept("c1")), true)
	expect.Same(t, "the file", expect.Exists(t, h.kept("c1")), false)
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{})
}

// TestFlannelOverTheReferenceBridge: executables do the work, flannel among them or not.
// Health and Repair follow the delegate, and Remove leaves nothing, also with built-in plugins
// in place of executables that are gone.
func TestFlannelOverTheReferenceBridge(t *testing.T) {
	for _, executable := range []bool{false, true} {
		for _, uninstalled := range []bool{false, true} {
			t.Run(fmt.Sprintf("executable %t uninstalled %t", executable, uninstalled), func(t *testing.T) {
				n := newNode(t)
				dir, real := n.Path("bin"), testhost.ReferencePlugins(t)
				expect.NoError(t, os.Mkdir(dir, 0o755), os.Symlink(filepath.Join(real, "bridge"), filepath.Join(dir, "bridge")),
					os.Symlink(filepath.Join(real, "host-local"), filepath.Join(dir, "host-local")))
				want := map[string]string{"flannel": "built in", "bridge": "executable"}
				if executable {
					expect.NoError(t, os.Symlink(refplugins.Flannel(), filepath.Join(dir, "flannel")))
					want = map[string]string{"flannel": "executable"}
				}
				r := n.Runtime(cni.WithConfListBytes(n.conf("0.4.0", `, "delegate": {"bridge": "br7"}`)))
				before, path := n.Audit(), n.Container("c1")
				testhost.MustSetUp(t, r, "c1", path)
				expect.Same(t, "plugins", expect.Value(r.Attachments("c1"))(t)[0].Plugins, want)
				v := n.verdict(r, "c1")
				expect.Same(t, "health", fmt.Sprint(v.State, differences(v), v.Reason), fmt.Sprint(cni.StateHealthy, []string(nil), error(nil)))
				expect.NoError(t, r.Check(t.Context(), "c1", path), netlink.LinkDel(n.Link("", "br7")))
				v = n.verdict(r, "c1")
				expect.Same(t, "a missing bridge", slices.Contains(differences(v), "bridge bridge"), true)
				expect.NoError(t, expect.Reported(r.Repair(t.Context(), "c1", cni.RepairOptions{})))
				v = n.verdict(r, "c1")
				expect.Same(t, "health after the repair", fmt.Sprint(v.State, differences(v)), fmt.Sprint(cni.StateHealthy, []string(nil)))
				if uninstalled {
					expect.NoError(t, os.RemoveAll(dir))
				}
				expect.NoError(t, r.Remove(t.Context(), "c1", path))
				n.WantClean(before)
			})
		}
	}
}

// TestTwoNetworksOfFlannelForOneContainer share a file, which either has written. Each is
// removed by itself, and leaves the other whole.
func TestTwoNetworksOfFlannelForOneContainer(t *testing.T) {
	for _, first := range []string{"pods", "second"} {
		t.Run(first, func(t *testing.T) {
			n := newNode(t)
			other := strings.NewReplacer(`"pods"`, `"second"`, "br0", "br1").Replace(string(n.conf("1.0.0", `, "delegate": {"bridge": "br0"}`)))
			other = strings.ReplaceAll(other, n.subnetFile, n.Path("second.env"))
			expect.NoError(t, os.WriteFile(n.Path("second.env"), []byte(strings.NewReplacer("10.244.1.", "10.244.2.", ":244:1:", ":244:2:").Replace(lease)), 0o644))
			r := n.builtIn(cni.WithConfListBytes(n.conf("1.0.0", `, "delegate": {"bridge": "br0"}`)), cni.WithConfListBytes([]byte(other)))
			before, path := n.Audit(), n.Container("c1")
			testhost.MustSetUp(t, r, "c1", path)
			v := n.verdict(r, "c1")
			expect.Same(t, "health of both", fmt.Sprint(v.State, differences(v), v.Reason), fmt.Sprint(cni.StateHealthy, []string(nil), error(nil)))
			expect.NoError(t, r.Remove(t.Context(), "c1", path, cni.WithNetwork(first)))
			v = n.verdict(r, "c1")
			expect.Same(t, "health of the other", fmt.Sprint(v.State, differences(v), v.Reason), fmt.Sprint(cni.StateHealthy, []string(nil), error(nil)))
			if expect.Exists(t, n.kept("c1")) {
				expect.Lacks(t, "the file", string(expect.Value(os.ReadFile(n.kept("c1")))(t)), fmt.Sprintf("%q", first))
			}
			expect.NoError(t, r.Remove(t.Context(), "c1", path))
			n.WantClean(before)
		})
	}
}
