package whereabouts

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/cnitest"
	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/testhost/kubeapi"
	"github.com/embedcni/cni/netns"
)

// cluster is two hosts on a LAN that share a store.
type cluster struct {
	*store
	lan  *plugintest.LAN
	a, b *host
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{store: newStore(t), lan: plugintest.NewLAN(t)}
	c.a, c.b = c.newHost(t), c.newHost(t)
	return c
}

// host is a host with the interface lan0 on the LAN, and the bridge br0 with an uplink there.
type host struct {
	*cnitest.TestHost
	t     *testing.T
	store *store
	api   *kubeapi.Endpoint // cut off while the host does not reach the store
}

// storeAddress is where each host finds the store, in its own namespace.
const storeAddress = "127.0.0.1:6443"

func (c *cluster) newHost(t *testing.T) *host {
	t.Helper()
	h := &host{TestHost: cnitest.Host(t, cnitest.WithoutAudit()), t: t, store: c.store}
	ns := h.namespace(h.NetNS)
	c.lan.Cable(t, ns, "lan0")
	c.lan.Cable(t, ns, "cable")
	nettest.AddBridge(t, ns, "br0")
	// A veth port would look like a container's: the plugin bridge would expect no other machine.
	nettest.Change(t, ns, "cable", func(nl *netlink.Handle, cable netlink.Link) error {
		br, err := nl.LinkByName("br0")
		if err != nil {
			return err
		}
		a := nettest.Attrs("uplink")
		a.ParentIndex, a.MasterIndex = cable.Attrs().Index, br.Attrs().Index
		return nl.LinkAdd(&netlink.Macvlan{LinkAttrs: a, Mode: netlink.MACVLAN_MODE_PASSTHRU})
	})
	nettest.SetUp(t, ns, "lan0", "cable", "uplink", "br0")
	// It is run under the name of its type.
	expect.NoError(t, os.Symlink(os.Getenv(programVar), filepath.Join(h.PluginDir, "whereabouts")))
	h.reach()
	t.Cleanup(h.lose)
	h.writeSettings()
	before := h.Audit()
	t.Cleanup(func() { h.unchanged(before) })
	return h
}

// namespace opens a namespace until the test ends.
func (h *host) namespace(path string) *netns.Handle {
	h.t.Helper()
	ns := expect.Value(netns.Open(path))(h.t)
	h.t.Cleanup(func() { expect.NoError(h.t, ns.Close()) })
	return ns
}

// reach lets the host reach the store.
func (h *host) reach() {
	h.t.Helper()
	expect.NoError(h.t, h.Do(func() error {
		l, err := net.Listen("tcp", storeAddress)
		if err == nil {
			h.api = kubeapi.Listen(l, h.store)
		}
		return err
	}))
}

// lose takes the store from the host: connections are refused.
func (h *host) lose() { h.api.Stop() }

// settings is the path of the file with whereabouts' settings.
func (h *host) settings() string { return filepath.Join(h.Dir, "whereabouts.conf") }

// writeSettings writes whereabouts' settings, and how it finds the store.
func (h *host) writeSettings() {
	h.t.Helper()
	config := filepath.Join(h.Dir, "kubeconfig")
	expect.NoError(h.t,
		os.WriteFile(h.settings(), fmt.Appendf(nil, `{"datastore": "kubernetes", "kubernetes": {"kubeconfig": %q}}`, config), 0o600),
		os.WriteFile(config, fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Config", "current-context": "store",
			"contexts": [{"name": "store", "context": {"cluster": "store", "user": "host", "namespace": %q}}],
			"clusters": [{"name": "store", "cluster": {"server": "https://%s", "certificate-authority-data": %q}}],
			"users": [{"name": "host", "user": {"token": "host"}}]}`, storeNamespace, storeAddress, base64.StdEncoding.EncodeToString(h.api.CA())), 0o600))
}

// Main plugins that put a container on the LAN.
const (
	macvlan = `"type": "macvlan", "master": "lan0"`
	bridge  = `"type": "bridge", "bridge": "br0"`
)

// mains are those plugins by type.
var mains = map[string]string{"macvlan": macvlan, "bridge": bridge}

// bothFamilies are the ranges of most tests. The LAN's own machine has 10.1.0.99 and fd00::99.
const bothFamilies = `"ipRanges": [{"range": "10.1.0.0/24"}, {"range": "fd00::/64"}]`

// on returns a network of a main plugin with whereabouts and these settings. CHECK is disabled,
// because whereabouts has none.
func (h *host) on(main, settings string) cni.Opt {
	return cni.WithConfListBytes([]byte(`{"cniVersion": "1.0.0", "name": "lan", "disableCheck": true, "plugins": [` + h.plugin(main, settings) + `]}`))
}

func (h *host) plugin(main, settings string) string {
	return fmt.Sprintf(`{%s, "ipam": {"type": "whereabouts", "configuration_path": %q, "leader_retry_period": 100, %s}}`,
		main, h.settings(), settings)
}

// podNamespace is that of all containers' pods, which have the containers' names.
const podNamespace = "default"

// pod has the arguments by which whereabouts knows a pod.
func pod(id string) cni.NamespaceOpts {
	return func(n *cni.Namespace) error {
		return errors.Join(cni.WithArgs("IgnoreUnknown", "1")(n),
			cni.WithArgs("K8S_POD_NAMESPACE", podNamespace)(n), cni.WithArgs("K8S_POD_NAME", id)(n))
	}
}

// attached is a container with its addresses.
type attached struct {
	id, path  string
	addresses []netip.Addr
}

// container makes a container's namespace.
func container(t *testing.T, id string) *attached {
	t.Helper()
	return &attached{id: id, path: cnitest.Container(t)}
}

// setUp attaches a new container, which must succeed.
func (h *host) setUp(r *cni.Runtime, id string) *attached {
	h.t.Helper()
	a := container(h.t, id)
	expect.NoError(h.t, a.attach(h.t.Context(), r))
	return a
}

// attach attaches the container.
func (a *attached) attach(ctx context.Context, r *cni.Runtime) error {
	result, err := r.Setup(ctx, a.id, a.path, pod(a.id))
	if err != nil {
		return err
	}
	a.addresses = nil
	for _, address := range result.Primary().Addresses {
		a.addresses = append(a.addresses, address.IP())
	}
	return nil
}

// linesOf are the lines that the store has of containers; see [store.held].
func linesOf(all ...*attached) []string {
	lines := []string{}
	for _, a := range all {
		for _, address := range a.addresses {
			lines = append(lines, fmt.Sprintf("%s of %s/eth0", address, a.id), fmt.Sprintf("%s reserved by %s/%s", address, podNamespace, a.id))
		}
	}
	slices.Sort(lines)
	return lines
}

// remove detaches the container, which must succeed.
func (a *attached) remove(t *testing.T, r *cni.Runtime) {
	t.Helper()
	expect.NoError(t, r.Remove(t.Context(), a.id, a.path))
}

// reaches checks that a container answers another namespace at all of its addresses.
func (a *attached) reaches(t *testing.T, from *netns.Handle) {
	t.Helper()
	to := expect.Value(netns.Open(a.path))(t)
	defer to.Close()
	for _, address := range a.addresses {
		plugintest.Connect(t, from, to, address)
	}
}

// unchanged checks that a host is as it was at an audit.
func (h *host) unchanged(before []string) {
	h.t.Helper()
	expect.Same(h.t, "what the host has and had not, or had", cnitest.Diff(before, h.Audit()), "")
}

// onlyRecords checks that a host has nothing that it had not at an audit but records of
// attachments, with what libcni keeps for each.
func (h *host) onlyRecords(before []string) {
	h.t.Helper()
	own := func(all []string) []string {
		return slices.DeleteFunc(slices.Clone(all), func(l string) bool { return strings.Contains(l, h.StateDir) })
	}
	expect.Same(h.t, "what the host has and had not, or had", cnitest.Diff(own(before), own(h.Audit())), "")
}

// recorded lists the attachments on record: "c1 failed".
func recorded(t *testing.T, r *cni.Runtime) []string {
	t.Helper()
	all := []string{}
	for _, a := range expect.Value(r.Attachments())(t) {
		all = append(all, fmt.Sprintf("%s %s", a.ContainerID, a.State))
	}
	return all
}

// verdicts are Health's, with what nobody has compared: "c1: healthy [whereabouts]".
func verdicts(t *testing.T, r *cni.Runtime) []string {
	t.Helper()
	all := []string{}
	for _, h := range expect.Value(r.Health(t.Context(), cni.HealthOptions{}))(t) {
		all = append(all, fmt.Sprintf("%s: %s %v", h.ContainerID, h.State, h.Uncompared))
	}
	return all
}
