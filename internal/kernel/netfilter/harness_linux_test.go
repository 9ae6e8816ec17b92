package netfilter

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	types "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/iptables"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/sandbox"
	"github.com/embedcni/cni/netns"
)

// host is a network namespace that represents a host. The test's goroutine is
// locked to a thread in it, which ends with the goroutine.
type host struct {
	t       testing.TB
	dir     string
	plugins string
	ns      *netns.Handle
	fw      *Firewalls
}

// newHost makes a host on which the plugins find the variant of iptables, "nft"
// or "legacy", by the plain name.
func newHost(t testing.TB, variant string) *host {
	t.Helper()
	plugins := expect.Value(refplugins.Dir(t.Context(), io.Discard))(t)
	h := &host{t: t, dir: t.TempDir(), plugins: plugins, fw: Open(nil, Options{})}
	bin := filepath.Join(h.dir, "bin")
	for _, family := range []string{"iptables", "ip6tables"} {
		tool, err := iptables.LookPath(family + "-" + variant)
		expect.Must(t, err == nil, "these tests need both variants of iptables: %v", err)
		expect.NoError(t, os.MkdirAll(bin, 0o755))
		expect.NoError(t, os.Symlink(tool, filepath.Join(bin, family)))
	}
	t.Setenv("PATH", bin+":/usr/sbin:/sbin:"+os.Getenv("PATH"))
	h.ns = h.newNetNS("host")
	nettest.Enter(t, h.ns)
	h.sh("ip link set lo up")
	return h
}

// newNetNS makes a namespace that lives until the test ends.
func (h *host) newNetNS(name string) *netns.Handle {
	h.t.Helper()
	ns := nettest.At(h.t, filepath.Join(h.dir, "netns", name))
	expect.NoError(h.t, ns.Do(nettest.NoAddressDetection))
	return ns
}

// tools returns the names of iptables in both families and variants.
func tools() []string {
	return []string{"iptables-nft", "iptables-legacy", "ip6tables-nft", "ip6tables-legacy"}
}

func (h *host) sh(script string) {
	h.t.Helper()
	out, err := exec.Command("sh", "-ec", script).CombinedOutput()
	expect.Must(h.t, err == nil, "%s\n%v: %s", script, err, out)
}

// network returns a list of plugins with its placeholders replaced.
func (h *host) network(name, subnet, plugins string) *libcni.NetworkConfigList {
	h.t.Helper()
	ipam := fmt.Sprintf(`{"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.%s.0.0/24"}], [{"subnet": "fd00:%s::/64"}]]}`,
		filepath.Join(h.dir, "ipam"), subnet, subnet)
	plugins = strings.NewReplacer("IPAM", ipam, "BRIDGE", "br"+subnet).Replace(plugins)
	return expect.Value(libcni.NetworkConfFromBytes(fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": %q, "plugins": [%s]}`, name, plugins)))(h.t)
}

// attachment is the result of an ADD.
type attachment struct {
	list *libcni.NetworkConfigList
	rt   *libcni.RuntimeConf
	addr []netip.Addr
}

// target returns the runtime's description of it.
func (a attachment) target() Target {
	return Target{Owner: Owner{Network: a.list.Name, ContainerID: a.rt.ContainerID, IfName: a.rt.IfName}, Addresses: a.addr}
}

// add runs ADD with the real plugins. Containers differ by id. The ports are
// those of the capability.
func (h *host) add(list *libcni.NetworkConfigList, id, ifName, ports string) (attachment, error) {
	h.t.Helper()
	a := h.attachment(list, id, ifName, ports)
	if _, err := os.Stat(a.rt.NetNS); err != nil {
		h.newNetNS(filepath.Base(a.rt.NetNS))
	}
	err := h.run(&a)
	return a, err
}

// attachment returns one that has not been made yet.
func (h *host) attachment(list *libcni.NetworkConfigList, id, ifName, ports string) attachment {
	h.t.Helper()
	pin := filepath.Join(h.dir, "netns", id[:min(len(id), 100)]) // a file's name has limits
	a := attachment{list: list, rt: &libcni.RuntimeConf{ContainerID: id, NetNS: pin, IfName: ifName}}
	if ports != "" {
		var mappings []map[string]any
		expect.NoError(h.t, json.Unmarshal([]byte(ports), &mappings))
		a.rt.CapabilityArgs = map[string]any{"portMappings": mappings}
	}
	return a
}

// run makes the attachment, in the namespace of the calling thread.
func (h *host) run(a *attachment) error {
	raw, err := h.libcni().AddNetworkList(h.t.Context(), a.list, a.rt)
	if err != nil {
		return err
	}
	result, err := types.NewResultFromResult(raw)
	if err != nil {
		return err
	}
	for _, ip := range result.IPs {
		addr, ok := netip.AddrFromSlice(ip.Address.IP)
		if !ok {
			return fmt.Errorf("address %v", ip)
		}
		a.addr = append(a.addr, addr.Unmap())
	}
	return nil
}

func (h *host) libcni() *libcni.CNIConfig {
	return libcni.NewCNIConfigWithCacheDir([]string{h.plugins}, filepath.Join(h.dir, "cache"), nil)
}

func (h *host) mustAdd(list *libcni.NetworkConfigList, id, ifName, ports string) attachment {
	h.t.Helper()
	return expect.Value(h.add(list, id, ifName, ports))(h.t)
}

// filters returns the audit's lines of packet filters.
func (h *host) filters() audit.Lines {
	h.t.Helper()
	lines := expect.Value(audit.Snapshot(h.t.Context(), audit.Options{}))(h.t)
	return lines.Without(func(l string) bool {
		what, _, _ := strings.Cut(l, " ")
		return what != "nft" && !strings.HasPrefix(what, "iptables") && !strings.HasPrefix(what, "ip6tables")
	})
}

// sweep finds and deletes the target's rules, and fails unless none are found
// afterwards. It returns the plan.
func (h *host) sweep(target Target) Plan {
	h.t.Helper()
	plan := h.find(target)
	err := plan.Apply(h.t.Context())
	expect.That(h.t, err == nil, "apply:\n%s\n%v", plan, err)
	again := h.find(target)
	expect.That(h.t, again.Empty(), "after the sweep there is still:\n%s", again)
	expect.NoError(h.t, plan.Apply(h.t.Context()))
	return plan
}

func (h *host) find(target Target) Plan {
	h.t.Helper()
	return expect.Value(Find(h.t.Context(), h.fw, target))(h.t)
}

// wantFilters compares the packet filters' lines.
func (h *host) wantFilters(want audit.Lines) {
	h.t.Helper()
	left, gone := audit.Diff(want, h.filters())
	expect.Unchanged(h.t, "left behind", left, gone)
}

// Check returns an error unless all of the rules exist: that of the first missing one.
func (fw *Firewalls) Check(ctx context.Context, r testRules) error {
	all, err := fw.Missing(ctx, r.rules()...)
	if err == nil && len(all) > 0 {
		err = all[0].Err
	}
	return err
}

func TestMain(m *testing.M) {
	if os.Getenv(raceVariable) != "" {
		os.Exit(m.Run()) // it was started inside
	}
	if os.Getenv(addVariable) != "" {
		os.Exit(addInProcess())
	}
	if without := os.Getenv(withoutVariable); without != "" {
		if err := withoutNFTables(without == "hidden"); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(refplugins.Main(m, sandbox.Shards(2)))
}
