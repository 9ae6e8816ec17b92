package cni_test

import (
	"context"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/netns"
)

// reserved are the addresses that host-local has given out in a network.
func (h *realHost) reserved(network string) []string {
	h.t.Helper()
	entries, err := os.ReadDir(h.path("ipam", network))
	if err != nil {
		h.t.Fatal(err)
	}
	var addresses []string
	for _, e := range entries {
		if addr, err := netip.ParseAddr(e.Name()); err == nil {
			addresses = append(addresses, addr.String())
		}
	}
	return addresses
}

// goneCase is a network whose containers' namespaces go before they are removed.
type goneCase struct {
	name    string
	network realCase
	taken   []string // links of the host that go with a namespace that nothing keeps
}

func goneCases() []goneCase {
	both := v4Range + "," + v6Range
	return []goneCase{
		{name: "bridge", network: realCase{plugins: []string{bridgeConf(`"ipMasq": true, ` + hostLocal(both))}}},
		{name: "bridge nftables", network: realCase{plugins: []string{
			bridgeConf(`"ipMasq": true, "ipMasqBackend": "nftables", ` + hostLocal(both))}}},
		{name: "ptp", network: realCase{plugins: []string{ptpConf(hostLocal(both))}}},
		{name: "everything", network: everything()},
		{name: "macvlan", network: realCase{prepare: uplink,
			plugins: []string{`{"type": "macvlan", "master": "up0", ` + hostLocal(v4Range) + `}`}}},
		// A device made by software dies with the namespace it is in, and its
		// peer with it; one made of metal returns to the first namespace.
		{name: "host-device", network: realCase{
			prepare: func(h *realHost) { h.vethPair("up0", "up1"); h.linkUp("up1") },
			plugins: []string{`{"type": "host-device", "device": "up0", ` + hostLocal(v4Range) + `}`}},
			taken: []string{"link up0 type veth mtu 1500 down", "link up1 type veth mtu 1500 up"}},
	}
}

// Nothing is left of a container whose namespace went before Remove (FAULTS
// F2): its plugins find it where it is kept, and what they leave where nothing
// has kept it, as after a reboot, is swept.
func TestRealRemoveWhenNamespaceIsGone(t *testing.T) {
	for _, c := range goneCases() {
		for _, way := range []string{"path given", "no path given", "nothing keeps it"} {
			t.Run(c.name+"/"+way, func(t *testing.T) { c.remove(t, way) })
		}
	}
}

func (c *goneCase) remove(t *testing.T, way string) {
	h := newRealHost(t)
	if c.network.prepare != nil {
		c.network.prepare(h)
	}
	r := h.real(cni.WithConfListBytes(c.network.conf("podnet", "1.0.0", h.path("ipam"))))
	path := h.mortal("c1")
	before := h.audit()
	links := h.links() - len(c.taken)
	_, err := r.Setup(context.Background(), "c1", path, onePort)
	wantNil(t, err)
	wantNil(t, netns.Remove(path))
	var taken audit.Lines
	switch way {
	case "no path given":
		path = ""
	case "nothing keeps it":
		wantNil(t, netns.Remove(h.pin("c1")))
		h.waitForLinks(links)
		taken = c.taken
	}
	for range 2 {
		wantNil(t, r.Remove(context.Background(), "c1", path))
	}
	left, gone := h.left(before)
	wantSame(t, "left", strings.Join(left, "\n"), "")
	wantSame(t, "gone", strings.Join(h.normalize(gone), "\n"), strings.Join(taken, "\n"))
}

// links counts the host's links that die with a container.
func (h *realHost) links() int {
	h.t.Helper()
	list, err := audit.Dump(netlink.LinkList)
	if err != nil {
		h.t.Fatal(err)
	}
	n := 0
	for _, l := range list {
		if l.Type() == "veth" {
			n++
		}
	}
	return n
}

// waitForLinks waits until the kernel has taken down what a namespace held,
// which it does some time after the last reference.
func (h *realHost) waitForLinks(want int) {
	h.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for tick := time.NewTicker(5 * time.Millisecond); h.links() != want; <-tick.C {
		if time.Now().After(deadline) {
			h.t.Fatalf("%d links, want %d", h.links(), want)
		}
	}
}
