package bandwidth

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/plugin"
)

const both = `"ingressRate": 8000000, "ingressBurst": 8000000, "egressRate": 8000000, "egressBurst": 8000000`

func lookup(string) plugin.Plugin { return Plugin{} }

func compared(t *testing.T, h plugintest.Host, c plugintest.Call, extent plugintest.Extent) (found, left string) {
	t.Helper()
	found, left, err := plugintest.Compared(t.Context(), h.Host, lookup, c, extent)
	expect.NoError(t, err)
	return found, left
}

// damage changes an interface of the host.
type damage struct {
	name string
	do   func(*netlink.Handle, netlink.Link) error
}

func deleteTbf(nl *netlink.Handle, l netlink.Link) error {
	return nl.QdiscDel(tbf(l.Attrs().Index, limit{rate: 8000, burst: 8000}))
}

func deleteIngress(nl *netlink.Handle, l netlink.Link) error {
	return nl.QdiscDel(ingress(l.Attrs().Index))
}

func deleteFilter(nl *netlink.Handle, l netlink.Link) error {
	filters, err := nl.FilterList(l, netlink.MakeHandle(0xffff, 0))
	if err != nil {
		return err
	}
	return nl.FilterDel(filters[0])
}

func deleteLink(nl *netlink.Handle, l netlink.Link) error { return nl.LinkDel(l) }
func setDown(nl *netlink.Handle, l netlink.Link) error    { return nl.LinkSetDown(l) }

// texts of the differences. IFB stands for the device.
const (
	noTbf      = `bandwidth host queue "tbf of DEV": wanted "BUCKET", found ""; fix; limit of the traffic DIRECTION: `
	noRedirect = `bandwidth host queue "ingress of veth0": wanted "redirected to IFB", found ""; fix; limit of the traffic from the container: interface "veth0" does not redirect its ingress to "IFB"`
	gone       = `interface "IFB": no such device`
)

func lacksTbf(dev, why string) string {
	direction := "to the container"
	if dev != "veth0" {
		direction = "from the container"
	}
	b := bucketOf(limit{8000000, 8000000}, netlink.TickInUsec())
	return strings.NewReplacer("DEV", dev, "DIRECTION", direction, "BUCKET", b.String()).Replace(noTbf) + why
}

func repairable() map[string]struct {
	damages []damage
	want    []string
} {
	queueless := func(dev, kind string) string {
		return lacksTbf(dev, fmt.Sprintf("interface %q has a queue of type %q, and no tbf", dev, kind))
	}
	return map[string]struct {
		damages []damage
		want    []string
	}{
		"nothing":            {nil, nil},
		"no tbf on the veth": {[]damage{{"veth0", deleteTbf}}, []string{queueless("veth0", "noqueue")}},
		"no tbf on the ifb":  {[]damage{{"IFB", deleteTbf}}, []string{lacksTbf("IFB", `interface "IFB" has a queue of type`)}},
		"no filter":          {[]damage{{"veth0", deleteFilter}}, []string{noRedirect}},
		"no ingress queue":   {[]damage{{"veth0", deleteIngress}}, []string{noRedirect}},
		"ifb down": {[]damage{{"IFB", setDown}}, []string{
			`bandwidth host interface "IFB": wanted "an ifb that is up", found "down"; fix; limit of the traffic from the container: interface "IFB" of type "ifb" is not an ifb that is up`,
		}},
		"no ifb": {[]damage{{"IFB", deleteLink}}, []string{
			`bandwidth host interface "IFB": wanted "an ifb that is up", found ""; fix; limit of the traffic from the container: ` + gone,
			lacksTbf("IFB", gone), noRedirect,
		}},
		"nothing left": {[]damage{{"IFB", deleteLink}, {"veth0", deleteIngress}, {"veth0", deleteTbf}}, []string{
			queueless("veth0", "noqueue"),
			`bandwidth host interface "IFB": wanted "an ifb that is up", found ""; fix; limit of the traffic from the container: ` + gone,
			lacksTbf("IFB", gone), noRedirect,
		}},
	}
}

// TestEachDamageIsFoundAndRepaired, whoever made the attachment: then everything is as
// it was, with the ifb's hardware address, and a DEL leaves nothing.
func TestEachDamageIsFoundAndRepaired(t *testing.T) {
	for _, made := range []string{"ours", "theirs"} {
		for name, tt := range repairable() {
			t.Run(made+"/"+name, func(t *testing.T) {
				h := plugintest.NewHost(t)
				side, c := ours(h), callFor(h, both)
				if made == "theirs" {
					side = plugintest.Theirs(t, h.Host)
				}
				before := plugintest.Audit(t, h.Host)
				c.Prev = side.Must(t, "ADD", c)
				ifb := Device("podnet", "c1")
				was, mac := described(t, h), nettest.Link(t, h.Host, ifb).Attrs().HardwareAddr.String()
				for _, d := range tt.damages {
					nettest.Change(t, h.Host, strings.ReplaceAll(d.name, "IFB", ifb), d.do)
				}
				found, left := compared(t, h, c, plugintest.RepairHost)
				if want := strings.ReplaceAll(strings.Join(tt.want, "\n"), "IFB", ifb); !strings.HasPrefix(found, want) {
					t.Errorf("found\n%s\nwant\n%s", found, want)
				}
				expect.Same(t, "left", left, "")
				expect.Same(t, "now", described(t, h), was)
				expect.Same(t, "hardware address of the ifb", nettest.Link(t, h.Host, ifb).Attrs().HardwareAddr.String(), mac)
				plugintest.Theirs(t, h.Host).Must(t, "CHECK", c)
				side.Must(t, "CHECK", c)
				side.Must(t, "DEL", c)
				nettest.Change(t, h.Host, "veth0", deleteLink)
				plugintest.NoLeak(t, before.Without(about("veth0")), plugintest.Audit(t, h.Host))
			})
		}
	}
}

// TestOthersQueuesAreLeft: what somebody has put in the place of a limit is reported, or
// accepted as CHECK does, and stays.
func TestOthersQueuesAreLeft(t *testing.T) {
	other := limit{rate: 8000000, burst: 4000}
	replace := func(nl *netlink.Handle, l netlink.Link) error { return nl.QdiscReplace(tbf(l.Attrs().Index, other)) }
	ifb := Device("podnet", "c1")
	differs := func(dev, why string) string {
		b, o := bucketOf(limit{8000000, 8000000}, netlink.TickInUsec()), bucketOf(other, netlink.TickInUsec())
		direction := "to the container"
		if dev == ifb {
			direction = "from the container"
		}
		return fmt.Sprintf(`bandwidth host queue "tbf of %s": wanted "%v", found "%v"; no fix: somebody has changed the limit; limit of the traffic %s: interface "%s" has a tbf with %v, and not %v`,
			dev, b, o, direction, dev, o, b)
	}
	for name, tt := range map[string]struct {
		damages []damage
		want    string
	}{
		"another limit on the veth": {[]damage{{"veth0", replace}}, differs("veth0", "")},
		"another limit on the ifb":  {[]damage{{ifb, replace}}, differs(ifb, "")},
		"another queue on the veth": {[]damage{{"veth0", func(nl *netlink.Handle, l netlink.Link) error {
			return nl.QdiscReplace(&netlink.GenericQdisc{QdiscType: "pfifo", QdiscAttrs: netlink.QdiscAttrs{
				LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(7, 0), Parent: netlink.HANDLE_ROOT,
			}})
		}}}, ""},
		"another interface of that name": {[]damage{{ifb, deleteLink}, {"veth0", deleteIngress}, {"veth0", func(nl *netlink.Handle, _ netlink.Link) error {
			return nl.LinkAdd(&netlink.Bridge{LinkAttrs: nettest.Attrs(ifb)})
		}}}, `bandwidth host interface "` + ifb + `": wanted "an ifb that is up", found "an interface of type \"bridge\""; no fix: another interface has the name; limit of the traffic from the container: interface "` + ifb + `" of type "bridge" is not an ifb that is up`},
		"clsact in place of the ingress queue": {[]damage{{"veth0", deleteIngress}, {"veth0", func(nl *netlink.Handle, l netlink.Link) error {
			return nl.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}})
		}}}, `bandwidth host queue "ingress of veth0": wanted "redirected to ` + ifb + `", found "a queue of type clsact"; no fix: somebody has another queue there; limit of the traffic from the container: interface "veth0" does not redirect its ingress to "` + ifb + `"`},
	} {
		t.Run(name, func(t *testing.T) {
			h := plugintest.NewHost(t)
			side, c := ours(h), callFor(h, both)
			c.Prev = side.Must(t, "ADD", c)
			for _, d := range tt.damages {
				nettest.Change(t, h.Host, d.name, d.do)
			}
			was := described(t, h)
			found, left := compared(t, h, c, plugintest.RepairHost)
			if found != tt.want || left != tt.want {
				t.Errorf("found\n%s\nleft\n%s\nwant\n%s", found, left, tt.want)
			}
			expect.Same(t, "now", described(t, h), was)
		})
	}
}

// TestWhatCannotBeRepaired is reported with the reason.
func TestWhatCannotBeRepaired(t *testing.T) {
	ifb := Device("podnet", "c1")
	for name, tt := range map[string]struct {
		damage func(t *testing.T, h plugintest.Host, c *plugintest.Call)
		want   string
	}{
		"no interface in the container": {func(t *testing.T, h plugintest.Host, _ *plugintest.Call) {
			nettest.Change(t, h.Container, "eth0", deleteLink)
		}, `bandwidth container interface "eth0": wanted "a veth pair", found ""; no fix: bandwidth limits the interface of another plugin, and makes none; in the container: interface "eth0": no such device`},
		"a host's end of another name": {func(t *testing.T, h plugintest.Host, _ *plugintest.Call) {
			nettest.Change(t, h.Host, "veth0", func(nl *netlink.Handle, l netlink.Link) error {
				return errors.Join(nl.LinkSetDown(l), nl.LinkSetName(l, "renamed"))
			})
		}, `bandwidth host interface "eth0": wanted "a veth pair", found ""; no fix: bandwidth limits the interface of another plugin, and makes none; the host's end of interface "eth0": interface "renamed" is not in the previous result`},
		"a result that does not name the ifb": {func(t *testing.T, h plugintest.Host, c *plugintest.Call) {
			c.Prev = h.Result()
			nettest.Change(t, h.Host, ifb, deleteLink)
		}, `bandwidth host interface "` + ifb + `": wanted "an ifb that is up", found ""; no fix: the result does not name it, so a DEL would not delete it; limit of the traffic from the container: interface "` + ifb + `": no such device`},
	} {
		t.Run(name, func(t *testing.T) {
			h := plugintest.NewHost(t)
			side, c := ours(h), callFor(h, both)
			c.Prev = side.Must(t, "ADD", c)
			tt.damage(t, h, &c)
			if found, _ := compared(t, h, c, plugintest.OnlyCompare); found != tt.want {
				t.Errorf("found\n%s\nwant\n%s", found, tt.want)
			}
		})
	}
}

// TestARepairThatIsRepeatedOrLate: another repair may have been faster than a Fix, and
// the container's interface may be gone by then.
func TestARepairThatIsRepeatedOrLate(t *testing.T) {
	h := plugintest.NewHost(t)
	side, c := ours(h), callFor(h, both)
	c.Prev = side.Must(t, "ADD", c)
	was := described(t, h)
	for _, d := range repairable()["nothing left"].damages {
		nettest.Change(t, h.Host, strings.ReplaceAll(d.name, "IFB", Device("podnet", "c1")), d.do)
	}
	expect.NoError(t, plugintest.Comparing(t.Context(), h.Host, lookup, c, func(ctx context.Context, r *plugin.Request, p contract.Comparer) error {
		v, done, err := contract.Kernel(ctx, r)
		if err != nil {
			return err
		}
		all, err := p.Compare(ctx, r, v)
		for range 3 {
			for _, d := range all {
				err = errors.Join(err, d.Fix(ctx))
			}
		}
		expect.Same(t, "now", described(t, h), was)
		nettest.Change(t, h.Host, "veth0", deleteLink)
		for _, d := range all {
			expect.Says(t, d.Object+": without the interface", d.Fix(ctx), "no such device")
		}
		return errors.Join(err, done())
	}))
}

// TestFlowsLiveThroughARepair: nothing is deleted that packets pass.
func TestFlowsLiveThroughARepair(t *testing.T) {
	for name, tt := range repairable() {
		t.Run(name, func(t *testing.T) {
			h := plugintest.NewHost(t)
			nettest.AddAddress(t, h.Host, "veth0", "10.1.0.1/24")
			nettest.AddAddress(t, h.Container, "eth0", "10.1.0.2/24")
			side, c := ours(h), callFor(h, both)
			c.Prev = side.Must(t, "ADD", c)
			nettest.Serve(t, h.Container, 7)
			flows := map[string]*plugintest.Flow{}
			for _, network := range []string{"tcp", "udp"} {
				flows[network] = plugintest.NewFlow(t, h.Host, network, netip.MustParseAddrPort("10.1.0.2:7"))
			}
			for _, d := range tt.damages {
				nettest.Change(t, h.Host, strings.ReplaceAll(d.name, "IFB", Device("podnet", "c1")), d.do)
			}
			compared(t, h, c, plugintest.RepairHost)
			for network, f := range flows {
				if err := f.Answer(10 * time.Second); err != nil {
					t.Errorf("%s: %v", network, err)
				}
			}
		})
	}
}
