package veth_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
)

// soon is less than the second after which a lost first packet is repeated.
const soon = 800 * time.Millisecond

// TestPacketsPassWhenRepairReturns: no packet waits for the kernel's detection of
// duplicate addresses, nor for a neighbour that has another hardware address.
func TestPacketsPassWhenRepairReturns(t *testing.T) {
	ptp := attaching{typ: "ptp", conf: staticGW}
	for _, test := range []struct {
		name   string
		side   attaching
		script string
	}{
		{"the bridge is gone", routed, "ip link del cni0"},
		{"the bridge is down", routed, "ip link set cni0 down"},
		{"the bridge lost its addresses", routed, "ip addr flush dev cni0 scope global"},
		{"the host's routes are gone", routed, "ip route flush table main; ip -6 route flush dev cni0"},
		{"off the bridge", routed, "ip link set VETH nomaster"},
		{"the host's end is down", routed, "ip link set VETH down"},
		{"ptp: the host's end is down", ptp, "ip link set VETH down"},
		{"ptp: routes and addresses", ptp, "ip route flush dev VETH; ip addr flush dev VETH scope global; ip -6 route flush dev VETH"},
	} {
		t.Run(test.name, func(t *testing.T) {
			expect.Quick(t, "a connection", soon, func() (longest time.Duration) {
				h := newHost(t)
				a := h.attach(test.side, "c1")
				container := h.open("c1")
				defer container.Close()
				connect := func(when string) {
					for _, addr := range []string{"10.1.0.2", "fd00:1::2", "10.1.0.7", "fd00:1::7"} {
						from, to := h.ns, container
						if strings.HasSuffix(addr, "7") {
							from, to = to, from
						}
						took := plugintest.Connect(t, from, to, netip.MustParseAddr(addr))
						t.Logf("%s: a connection to %s took %v", when, addr, took)
						longest = max(longest, took)
					}
				}
				connect("before")
				h.sh(strings.ReplaceAll(test.script, "VETH", h.hostEnd(a.c.prev)))
				expect.Same(t, "what is left", a.repair(false), "")
				connect("repaired")
				return longest
			})
		})
	}
}
