package leftovers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni/internal/builtin/bandwidth"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/netns"
)

const mac = "0a:58:0a:01:00:02"

// reporting is a target whose result has interfaces on the host.
func reporting(host *netns.Handle, ends ...Link) Target {
	t := targetOf("c1", "eth0")
	t.Host, t.Footprint.Interface.HostEnds = host, ends
	return t
}

func TestTheHostsEndIsFoundByNameKindAndAddress(t *testing.T) {
	host := nettest.New(t)
	addVeth(t, host, "veth1", mac)
	addVeth(t, host, "veth2", "0a:58:0a:01:00:03") // the name is another container's by now
	addBridge(t, host, "veth3", mac)               // the plugin reports the bridge too
	target := reporting(host, Link{Name: "veth0", MAC: mac}, Link{Name: "veth1", MAC: strings.ToUpper(mac)},
		Link{Name: "veth2", MAC: mac}, Link{Name: "veth3", MAC: mac}, Link{Name: "veth", MAC: mac})
	wantSwept(t, target, "interface veth1 on the host")
	for _, neighbour := range []string{"veth2", "veth2p", "veth3"} {
		expect.That(t, hasLink(t, host, neighbour), "%s is gone", neighbour)
	}
}

// TestAVethWithoutAReportedAddressStays: without an address in the result the
// name's owner is unknown.
func TestAVethWithoutAReportedAddressStays(t *testing.T) {
	host := nettest.New(t)
	addVeth(t, host, "veth1", mac)
	wantSwept(t, reporting(host, Link{Name: "veth1"}))
}

func TestANameThatIsUsedAgainStays(t *testing.T) {
	host := nettest.New(t)
	addVeth(t, host, "veth1", mac)
	items := mustFind(t, reporting(host, Link{Name: "veth1", MAC: mac}))
	delLink(t, host, "veth1")
	addVeth(t, host, "veth1", mac)
	err := remove(t.Context(), items)
	expect.That(t, err == nil && hasLink(t, host, "veth1"), "Remove: %v, and the new interface is there: %v", err, hasLink(t, host, "veth1"))
}

func TestTheContainersInterface(t *testing.T) {
	host, container := nettest.New(t), nettest.New(t)
	addVeth(t, container, "eth0", mac)
	addVeth(t, container, "eth1", "0a:58:0a:01:00:03")
	addVeth(t, host, "eth0", mac)
	target := reporting(host)
	target.Container = container
	wantSwept(t, target) // a device that was moved in must not be deleted
	target.Footprint.Interface.Made = true
	target.Footprint.IfName = "lo"
	wantSwept(t, target)
	target.Footprint.IfName = "eth0"
	wantSwept(t, target, "interface eth0 in the container")
	expect.That(t, hasLink(t, host, "eth0") && hasLink(t, container, "eth1"), "an interface of the host's or of another attachment is gone")
	target.Container = nil // gone with its contents
	wantSwept(t, target)
}

// TestTheShaperOfTheRealPlugin compares the shaper's name with the real
// plugin's.
func TestTheShaperOfTheRealPlugin(t *testing.T) {
	host, container := nettest.New(t), nettest.New(t)
	long := strings.Repeat("n", 60)
	list := shaping(t, long)
	cni := libcni.NewCNIConfigWithCacheDir([]string{pluginDir(t)}, filepath.Join(t.TempDir(), "cache"), nil)
	for i, id := range []string{"c1", "c11"} {
		rt := &libcni.RuntimeConf{ContainerID: id, NetNS: container.File().Name(), IfName: fmt.Sprintf("eth%d", i)}
		expect.NoError(t, host.Do(func() error {
			_, err := cni.AddNetworkList(context.Background(), list, rt)
			return err
		}))
	}
	target := reporting(host)
	target.Footprint.Network = long
	wantSwept(t, target) // not shaped
	target.Footprint.Shaper, target.Footprint.ContainerID = Shaper{Possible: true, Egress: true}, "c"
	wantSwept(t, target)
	target.Footprint.ContainerID = "c1"
	wantSwept(t, target, "interface "+bandwidth.Device(long, "c1")+" on the host")
	expect.That(t, hasLink(t, host, bandwidth.Device(long, "c11")), "the neighbour's shaper is gone")
	addBridge(t, host, bandwidth.Device(long, "c1"), mac) // not an ifb device
	wantSwept(t, target)
}

func pluginDir(t *testing.T) string {
	t.Helper()
	return expect.Value(refplugins.Dir(t.Context(), os.Stderr))(t)
}

func shaping(t *testing.T, network string) *libcni.NetworkConfigList {
	t.Helper()
	list, err := libcni.NetworkConfFromBytes(fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": %q, "plugins": [
		{"type": "bridge", "bridge": "br0", "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.1.0.0/24"}]]}},
		{"type": "bandwidth", "ingressRate": 8000000, "ingressBurst": 8000000, "egressRate": 8000000, "egressBurst": 8000000}
	]}`, network, filepath.Join(t.TempDir(), "ipam")))
	expect.NoError(t, err)
	return list
}

// TestFault_F48_TheShaperOfAnotherStays: a device whose name several
// attachments share belongs to this one if its result says so, or if no other
// attachment can have made it.
func TestFault_F48_TheShaperOfAnotherStays(t *testing.T) {
	for name, c := range map[string]struct {
		reported string // hardware address in the result
		egress   bool
		taken    maker
		want     bool
	}{
		"reported":               {mac, false, true, true},
		"reported otherwise":     {"0a:58:0a:01:00:03", false, false, false},
		"no limit":               {"", false, false, false},
		"killed":                 {"", true, false, true},
		"killed, as another was": {"", true, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			host := nettest.New(t)
			nettest.Inside(t, host, func(nl *netlink.Handle) error {
				return nl.LinkAdd(&netlink.Ifb{LinkAttrs: attrs(t, bandwidth.Device("net", "1"), mac)})
			})
			target := reporting(host)
			target.Footprint.Network, target.Footprint.ContainerID, target.Others = "ne", "t1", c.taken.others()
			target.Footprint.Shaper = Shaper{Possible: true, Egress: c.egress}
			if c.reported != "" {
				target.Footprint.Interface.HostEnds = []Link{{Name: bandwidth.Device("ne", "t1"), MAC: c.reported}}
			}
			var want []string
			if c.want {
				want = []string{"interface " + bandwidth.Device("ne", "t1") + " on the host"}
			}
			wantSwept(t, target, want...)
		})
	}
}

// maker reports whether others have made the device that the attachments share.
type maker bool

// others are those on record: perhaps one, of a container of which the network and the ID
// together are the same text, whose ADD was killed.
func (m maker) others() *Others {
	o := &Others{ContainerID: "t1", Plugins: "t1", IfName: "eth0", Records: records{}}
	if m {
		o.Records = records{{Record: &record.Record{ContainerID: "1", Attachments: []record.Attachment{{
			Network: "net", IfName: "eth0", Config: []byte(`{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "bridge"}, {"type": "bandwidth", "egressRate": 8}]}`),
		}}}}}
	}
	return o
}

// stubborn cannot be removed.
func stubborn(err error) Item {
	return Item{err.Error(), func(context.Context) error { return err }}
}

func TestRemoveGoesOnAfterAnErrorAndStopsWithTheContext(t *testing.T) {
	host := nettest.New(t)
	addVeth(t, host, "veth1", mac)
	found := mustFind(t, reporting(host, Link{Name: "veth1", MAC: mac}))
	one, two := errors.New("one"), errors.New("two")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := remove(ended, found); !errors.Is(err, context.Canceled) || !hasLink(t, host, "veth1") {
		t.Errorf("with its context over: %v, and the interface is there: %v", err, hasLink(t, host, "veth1"))
	}
	err := remove(t.Context(), append([]Item{stubborn(one)}, append(found, stubborn(two))...))
	expect.That(t, errors.Is(err, one) && errors.Is(err, two) && !hasLink(t, host, "veth1"),
		"Remove: %v, and the interface is there: %v", err, hasLink(t, host, "veth1"))
}
