package behaviour_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

var onePort = cni.WithCapabilityPortMap([]cni.PortMapping{{HostPort: 8080, ContainerPort: 80, Protocol: "tcp"}})

// said holds the parts of a plugin's error that name its origin.
type said struct{ Op, Network, Plugin, ContainerID, IfName, Msg string }

func whatSaid(err error) said {
	var e *cni.Error
	if !errors.As(err, &e) {
		return said{Msg: fmt.Sprint(err)}
	}
	return said{e.Op, e.Network, e.Plugin, e.ContainerID, e.IfName, e.Msg}
}

// TestFault_F8_RealFailedSetupLeavesNothing: any network and any of its plugins
// may fail, and nothing stays attached (F8). The last plugin of a chain fails
// with all others before it, whose DELs need the result so far.
func TestFault_F8_RealFailedSetupLeavesNothing(t *testing.T) {
	unknown := `{"type": "tuning", "dataDir": "IPAM", "sysctl": {"net.ipv4.no_such_thing": "1"}}`
	full := testhost.BridgeConf(testhost.HostLocal(`[{"subnet": "10.79.0.0/24", "rangeStart": "10.79.0.5", "rangeEnd": "10.79.0.5"}]`))
	cases := []struct {
		name  string
		bad   testhost.Case
		taken bool // another container has the only address
		want  said
	}{
		{"address pool exhausted", testhost.Case{Plugins: []string{full}}, true,
			said{Plugin: "bridge", Msg: "failed to allocate for range 0: no IP addresses available in range set: 10.79.0.5-10.79.0.5"}},
		{"last plugin of a chain", testhost.Everything(unknown), false,
			said{Plugin: "tuning", Msg: "open /proc/sys/net/ipv4/no_such_thing: no such file or directory"}},
		{"no parent", testhost.Case{Plugins: []string{`{"type": "macvlan", "master": "nic7", ` + testhost.HostLocal(testhost.V4Range) + `}`}}, false,
			said{Plugin: "macvlan", Msg: "Link not found"}},
	}
	for _, c := range cases {
		for _, serially := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/serially %v", c.name, serially), func(t *testing.T) {
				h := newRealHost(t)
				good := testhost.Everything()
				good.Plugins[0] = strings.NewReplacer("cni0", "cni1", "10.77", "10.76", "fd77", "fd76").Replace(good.Plugins[0])
				bad := c.bad.Conf("bad", "1.0.0", h.Path("ipam"))
				r := h.Real(cni.WithLoNetwork, cni.WithConfListBytes(good.Conf("good", "1.0.0", h.Path("ipam"))),
					cni.WithConfListBytes(bad))
				if c.taken {
					h.attach(h.Real(cni.WithConfListBytes(bad)), "other")
				}
				path := h.Container("c1")
				before := h.Audit()
				setup := r.Setup
				if serially {
					setup = r.SetupSerially
				}
				for range 2 { // a failure does not affect the next attempt
					_, err := setup(context.Background(), "c1", path, onePort)
					want := c.want
					want.Op, want.Network, want.ContainerID, want.IfName = "ADD", "bad", "c1", "eth2"
					if got := whatSaid(err); got != want {
						t.Errorf("error\n%+v, want\n%+v; %v", got, want, err)
					}
					h.WantClean(before)
				}
			})
		}
	}
}

// TestRealPluginsThatNeedKernelModules: a plugin that this kernel does not
// support reports that through the library. If the kernel supports it, the
// container is attached and detached like any other.
func TestRealPluginsThatNeedKernelModules(t *testing.T) {
	cases := []struct{ plugin, conf, refusal string }{
		{"ipvlan", `{"type": "ipvlan", "master": "up0", ` + testhost.HostLocal(testhost.V4Range) + `}`,
			"failed to create ipvlan: operation not supported"},
		{"vlan", `{"type": "vlan", "master": "up0", "vlanId": 5, ` + testhost.HostLocal(testhost.V4Range) + `}`,
			"failed to create vlan: operation not supported"},
	}
	for _, c := range cases {
		t.Run(c.plugin, func(t *testing.T) {
			h := newRealHost(t)
			testhost.Uplink(h.RealHost)
			network := testhost.Case{Plugins: []string{c.conf}}
			r := h.Real(cni.WithConfListBytes(network.Conf("podnet", "1.0.0", h.Path("ipam"))))
			path := h.Container("c1")
			before := h.Audit()
			_, err := r.Setup(context.Background(), "c1", path)
			if err == nil {
				h.detach(r, "c1")
			} else {
				want := said{"ADD", "podnet", c.plugin, "c1", "eth0", c.refusal}
				if got := whatSaid(err); got != want {
					t.Errorf("error\n%+v, want\n%+v", got, want)
				}
				if text := err.Error(); !strings.Contains(text, c.plugin) || !strings.Contains(text, c.refusal) {
					t.Errorf("error %q does not say %q and %q", text, c.plugin, c.refusal)
				}
			}
			h.WantClean(before)
		})
	}
}

// reboot removes every namespace with its contents. Files stay, and records
// belong to another boot.
func (h *realHost) reboot(containers ...string) {
	h.T.Helper()
	for _, path := range containers {
		expect.NoError(h.T, netns.Remove(path))
	}
	h.Unpin()
	found, err := h.Records().List()
	expect.NoError(h.T, err)
	for _, f := range found {
		h.ChangeRecord(string(f.Record.ContainerID), func(rec *record.Record) { rec.Boot = "another" })
	}
	ns := h.NewNetNS("rebooted")
	expect.NoError(h.T, unix.Setns(int(ns.File().Fd()), unix.CLONE_NEWNET))
	expect.NoError(h.T, nettest.NoAddressDetection())
	h.LinkUp("lo")
}

// TestFault_F26_RealSetupAfterReboot: after a reboot the addresses are still on
// disk, reserved for containers that return. host-local would report "duplicate
// allocation is not allowed" (F26), so the leftovers are removed first.
func TestFault_F26_RealSetupAfterReboot(t *testing.T) {
	h := newRealHost(t)
	c := testhost.Everything()
	r := h.Real(cni.WithLoNetwork, cni.WithConfListBytes(c.Conf("podnet", "1.0.0", h.Path("ipam"))))
	path := h.Mortal("c1")
	files := h.Audit()
	if _, err := r.Setup(context.Background(), "c1", path, onePort); err != nil {
		t.Fatal(err)
	}
	h.reboot(path)
	h.Mortal("c1")
	result, err := r.Setup(context.Background(), "c1", path, onePort)
	expect.NoError(t, err)
	h.WantAsSaid(result, path, &c)
	if err := r.Check(context.Background(), "c1", path); err != nil {
		t.Error(err)
	}
	if got, want := h.reserved("podnet"), []string{result.IPv4().IP().String(), result.IPv6().IP().String()}; !reflect.DeepEqual(got, want) {
		t.Errorf("reserved %q, want %q", got, want)
	}
	if err := r.Remove(context.Background(), "c1", path); err != nil {
		t.Error(err)
	}
	h.WantClean(files)
}
