package behaviour_test

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/testhost"
)

// onBridge returns a Runtime of a host on which containers have the bridge br0.
func onBridge(h *realHost, opts ...cni.Opt) *cni.Runtime {
	conf := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "bridge", "bridge": "br0", "isDefaultGateway": true,
		"ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.77.0.0/16"}]]}}]}`, h.Path("ipam"))
	return h.Runtime(append([]cni.Opt{cni.WithConfListBytes([]byte(conf)), cni.WithBuiltinPlugins()}, opts...)...)
}

// macOf returns the hardware address of an interface on the host.
func macOf(t *testing.T, name string) net.HardwareAddr {
	t.Helper()
	link := expect.Value(netlink.LinkByName(name))(t)
	return link.Attrs().HardwareAddr
}

// TestADeletedBridgeComesBackWithItsAddress: a Setup that makes the bridge again gives it
// the hardware address that the containers on it know, whoever attached them. A connection
// of one lives on when that is repaired.
func TestADeletedBridgeComesBackWithItsAddress(t *testing.T) {
	h := newRealHost(t)
	r, other := onBridge(h), onBridge(h, cni.WithOwner("another program"))
	c1 := h.Container("c1")
	testhost.MustSetUp(t, r, "c1", c1)
	h.Serve("", 7)
	var flow net.Conn
	expect.NoError(t, h.At(c1, func() (err error) {
		flow, err = net.Dial("udp", "10.77.0.1:7")
		return err
	}))
	defer flow.Close()
	was := macOf(t, "br0")
	for i, by := range []*cni.Runtime{r, other} {
		change(t, "br0", netlink.LinkDel)
		id := fmt.Sprint("new", i)
		testhost.MustSetUp(t, by, id, h.Container(id))
		expect.Same(t, "the bridge's address", macOf(t, "br0").String(), was.String())
	}
	report, err := r.Repair(t.Context(), "c1", cni.RepairOptions{})
	expect.NoError(t, err, report.Err())
	expect.Eventually(t, "an answer to the connection", func() bool {
		if _, err := flow.Write([]byte("?")); err != nil {
			return false // an answer to an earlier one
		}
		expect.NoError(t, flow.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
		_, err := flow.Read(make([]byte, 64))
		return err == nil
	})
	health := expect.Value(r.Health(t.Context(), cni.HealthOptions{}))(t)
	expect.Same(t, "healthy", health.Count(cni.StateHealthy), len(health.Containers)-1) // new0 is not on the bridge any more
	expect.NoError(t, r.Check(t.Context(), "c1", c1))
}

// TestABridgeThatNobodyKnowsIsNew: no container of this host and boot is on record that an
// ADD made it for.
func TestABridgeThatNobodyKnowsIsNew(t *testing.T) {
	for what, happens := range map[string]func(h *realHost, r *cni.Runtime){
		"all were removed": func(h *realHost, r *cni.Runtime) { expect.NoError(h.T, r.Remove(h.T.Context(), "c1", "")) },
		"of another boot": func(h *realHost, _ *cni.Runtime) {
			h.ChangeRecord("c1", func(rec *record.Record) { rec.Boot = "another" })
		},
		"on another host": func(h *realHost, _ *cni.Runtime) { h.ChangeRecord("c1", func(rec *record.Record) { rec.Host = "1:1" }) },
		"no ADD made it": func(h *realHost, _ *cni.Runtime) {
			h.ChangeRecord("c1", func(rec *record.Record) { rec.Attachments[0].Facts = nil })
		},
		"of another bridge": func(h *realHost, _ *cni.Runtime) { h.replaceInResult("c1", "br0", "br1") },
		"its note is unclear": func(h *realHost, _ *cni.Runtime) {
			h.ChangeRecord("c1", func(rec *record.Record) { rec.Attachments[0].Facts["bridge.made"] = []byte(`7`) })
		},
	} {
		t.Run(what, func(t *testing.T) {
			h := newRealHost(t)
			r := onBridge(h, cni.WithoutReaping())
			testhost.MustSetUp(t, r, "c1", h.Container("c1"))
			was := macOf(t, "br0")
			happens(h, r)
			change(t, "br0", netlink.LinkDel)
			testhost.MustSetUp(t, r, "c2", h.Container("c2"))
			if now := macOf(t, "br0"); now.String() == was.String() {
				t.Errorf("the bridge has the address %v again", now)
			}
		})
	}
}

// TestTheNewestRecordKnowsTheBridge: where an earlier version made the bridge anew, with
// another address, the last containers know that.
func TestTheNewestRecordKnowsTheBridge(t *testing.T) {
	h := newRealHost(t)
	r := onBridge(h)
	testhost.MustSetUp(t, r, "c1", h.Container("c1"))
	const old = "02:00:00:00:00:01"
	h.ChangeRecord("c1", func(rec *record.Record) {
		rec.Attachments[0].Facts["bridge.made"] = []byte(`{"mac": "` + old + `"}`)
	})
	testhost.MustSetUp(t, r, "c2", h.Container("c2"))
	was := macOf(t, "br0")
	change(t, "br0", netlink.LinkDel)
	testhost.MustSetUp(t, r, "c3", h.Container("c3"))
	expect.Same(t, "the bridge's address", macOf(t, "br0").String(), was.String())
}

// replaceInResult changes the result of the container's ADD on record.
func (h *realHost) replaceInResult(id, old, new string) {
	h.T.Helper()
	h.ChangeRecord(id, func(rec *record.Record) {
		n := &rec.Attachments[0]
		n.Result = []byte(strings.ReplaceAll(string(n.Result), old, new))
	})
}
