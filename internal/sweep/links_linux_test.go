package sweep

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

	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/refplugins"
)

const mac = "0a:58:0a:01:00:02"

func TestTheHostsEndIsFoundByNameKindAndAddress(t *testing.T) {
	host := nettest.New(t)
	addVeth(t, host, "veth1", mac)
	addVeth(t, host, "veth2", "0a:58:0a:01:00:03") // the name is another container's by now
	addBridge(t, host, "veth3", mac)               // the plugin reports the bridge too
	target := Target{Network: "podnet", ContainerID: "c1", IfName: "eth0", Host: host, Links: []Link{
		{Name: "veth0", MAC: mac}, {Name: "veth1", MAC: strings.ToUpper(mac)},
		{Name: "veth2", MAC: mac}, {Name: "veth3", MAC: mac}, {Name: "veth", MAC: mac},
	}}
	wantSwept(t, target, "interface veth1 on the host")
	for _, neighbour := range []string{"veth2", "veth2p", "veth3"} {
		if !hasLink(t, host, neighbour) {
			t.Errorf("%s is gone", neighbour)
		}
	}
}

// Without an address in the result it is not known whose the name is.
func TestAVethWithoutAReportedAddressStays(t *testing.T) {
	host := nettest.New(t)
	addVeth(t, host, "veth1", mac)
	wantSwept(t, Target{ContainerID: "c1", IfName: "eth0", Host: host, Links: []Link{{Name: "veth1"}}})
}

func TestANameThatIsUsedAgainStays(t *testing.T) {
	host := nettest.New(t)
	addVeth(t, host, "veth1", mac)
	items := mustFind(t, Target{Host: host, Links: []Link{{Name: "veth1", MAC: mac}}})
	delLink(t, host, "veth1")
	addVeth(t, host, "veth1", mac)
	if err := Remove(t.Context(), items); err != nil || !hasLink(t, host, "veth1") {
		t.Errorf("Remove: %v, and the new interface is there: %v", err, hasLink(t, host, "veth1"))
	}
}

func TestTheContainersInterface(t *testing.T) {
	host, container := nettest.New(t), nettest.New(t)
	addVeth(t, container, "eth0", mac)
	addVeth(t, container, "eth1", "0a:58:0a:01:00:03")
	addVeth(t, host, "eth0", mac)
	target := Target{ContainerID: "c1", IfName: "eth0", Host: host, Container: container}
	wantSwept(t, target) // a device that was moved in is not ours to delete
	target.OwnsIf = true
	target.IfName = "lo"
	wantSwept(t, target)
	target.IfName = "eth0"
	wantSwept(t, target, "interface eth0 in the container")
	if !hasLink(t, host, "eth0") || !hasLink(t, container, "eth1") {
		t.Error("an interface of the host's or of another attachment is gone")
	}
	target.Container = nil // gone with all that was in it
	wantSwept(t, target)
}

// The name of the shaper is held against the real plugin's.
func TestTheShaperOfTheRealPlugin(t *testing.T) {
	host, container := nettest.New(t), nettest.New(t)
	long := strings.Repeat("n", 60)
	list := bandwidth(t, long)
	cni := libcni.NewCNIConfigWithCacheDir([]string{pluginDir(t)}, filepath.Join(t.TempDir(), "cache"), nil)
	for i, id := range []string{"c1", "c11"} {
		rt := &libcni.RuntimeConf{ContainerID: id, NetNS: container.File().Name(), IfName: fmt.Sprintf("eth%d", i)}
		err := host.Do(func() error {
			_, err := cni.AddNetworkList(context.Background(), list, rt)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	target := Target{Network: long, ContainerID: "c1", IfName: "eth0", Host: host}
	wantSwept(t, target) // not shaped
	target.Shaped, target.Egress, target.ContainerID = true, true, "c"
	wantSwept(t, target)
	target.ContainerID = "c1"
	wantSwept(t, target, "interface "+ShaperName(long, "c1")+" on the host")
	if !hasLink(t, host, ShaperName(long, "c11")) {
		t.Error("the neighbour's shaper is gone")
	}
	addBridge(t, host, ShaperName(long, "c1"), mac) // no ifb device
	wantSwept(t, target)
}

func pluginDir(t *testing.T) string {
	t.Helper()
	dir, err := refplugins.Dir(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func bandwidth(t *testing.T, network string) *libcni.NetworkConfigList {
	t.Helper()
	list, err := libcni.NetworkConfFromBytes(fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": %q, "plugins": [
		{"type": "bridge", "bridge": "br0", "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.1.0.0/24"}]]}},
		{"type": "bandwidth", "ingressRate": 8000000, "ingressBurst": 8000000, "egressRate": 8000000, "egressBurst": 8000000}
	]}`, network, filepath.Join(t.TempDir(), "ipam")))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// The device of the name that several attachments share is the attachment's by
// its result, or if nobody else may have made it.
func TestFault_F48_TheShaperOfAnotherStays(t *testing.T) {
	for name, c := range map[string]struct {
		target Target
		taken  bool
		want   bool
	}{
		"reported":               {Target{Links: []Link{{MAC: mac}}}, true, true},
		"reported otherwise":     {Target{Links: []Link{{MAC: "0a:58:0a:01:00:03"}}}, false, false},
		"no limit":               {Target{}, false, false},
		"killed":                 {Target{Egress: true}, false, true},
		"killed, as another was": {Target{Egress: true}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			host := nettest.New(t)
			nettest.Inside(t, host, func(nl *netlink.Handle) error {
				return nl.LinkAdd(&netlink.Ifb{LinkAttrs: attrs(t, ShaperName("net", "1"), mac)})
			})
			target := c.target
			target.Network, target.ContainerID, target.IfName, target.Host, target.Shaped = "ne", "t1", "eth0", host, true
			for i := range target.Links {
				target.Links[i].Name = ShaperName("ne", "t1")
			}
			target.OthersShaper = func(string, string) (bool, error) { return c.taken, nil }
			var want []string
			if c.want {
				want = []string{"interface " + ShaperName("ne", "t1") + " on the host"}
			}
			wantSwept(t, target, want...)
		})
	}
}

// stubborn cannot be removed.
type stubborn struct{ err error }

func (s stubborn) String() string { return s.err.Error() }
func (s stubborn) Remove() error  { return s.err }

func TestRemoveGoesOnAfterAnErrorAndStopsWithTheContext(t *testing.T) {
	host := nettest.New(t)
	addVeth(t, host, "veth1", mac)
	found := mustFind(t, Target{Host: host, Links: []Link{{Name: "veth1", MAC: mac}}})
	one, two := errors.New("one"), errors.New("two")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Remove(ended, found); !errors.Is(err, context.Canceled) || !hasLink(t, host, "veth1") {
		t.Errorf("with its context over: %v, and the interface is there: %v", err, hasLink(t, host, "veth1"))
	}
	err := Remove(t.Context(), append([]Item{stubborn{one}}, append(found, stubborn{two})...))
	if !errors.Is(err, one) || !errors.Is(err, two) || hasLink(t, host, "veth1") {
		t.Errorf("Remove: %v, and the interface is there: %v", err, hasLink(t, host, "veth1"))
	}
}
