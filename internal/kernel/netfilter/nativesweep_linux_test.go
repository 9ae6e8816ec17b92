package netfilter

import (
	"fmt"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
)

// nativeTarget returns the runtime's description of the attachment of [wanted].
func nativeTarget() Target {
	t := Target{Owner: Owner{Network: "podnet", ContainerID: "c1", IfName: "eth0"}, Addresses: addrs("10.1.0.2", "fd00:1::2")}
	t.Ports = wanted("c1", "10.1.0.2/24", "fd00:1::2/64", 8080).HostPorts[0].Ports
	return t
}

// TestSweepOfNative: the dry run has a line for each element, and the sweep
// removes exactly those, whether it finds them by key or by listing.
func TestSweepOfNative(t *testing.T) {
	for name, change := range map[string]func(*Target){
		"known":             func(*Target) {},
		"addresses unknown": func(t *Target) { t.Addresses, t.Ports = nil, nil },
		"ports unknown":     func(t *Target) { t.Ports, t.Thorough = nil, true },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, "nft")
			other := wanted("c2", "10.1.0.3/16", "fd00:1::3/64", 1000)
			other.Forward = []testForward{{Owner: other.Masquerade[0].Owner, Ingress: "same-bridge", Bridge: "br2"}}
			h.mustWrite(other)
			before := h.filters()
			h.mustWrite(wanted("c1", "10.1.0.2/24", "fd00:1::2/64", 8080))
			target := nativeTarget()
			change(&target)
			got := h.sweep(target).String()
			want := `nft delete element inet embedcni containers4 { 10.1.0.2 } # OWNER
nft delete element inet embedcni containers6 { fd00:1::2 } # OWNER
nft delete element inet embedcni hairpin4_24 { 10.1.0.2 . 10.1.0.0 } # OWNER
nft delete element inet embedcni hairpin4_8 { 10.1.0.2 . 127.0.0.0 } # OWNER
nft delete element inet embedcni hairpin6_64 { fd00:1::2 . fd00:1:: } # OWNER
nft delete element inet embedcni hostips4 { udp . 127.0.0.1 . 8080 } # OWNER
nft delete element inet embedcni hostips6 { sctp . fd00:99::1 . 8080 } # OWNER
nft delete element inet embedcni hostports4 { tcp . 8080 } # OWNER
nft delete element inet embedcni hostports6 { tcp . 8080 } # OWNER
nft delete element inet embedcni hostports6 { udp . 8080 } # OWNER
nft delete element inet embedcni subnets4_24 { 10.1.0.2 . 10.1.0.0 } # OWNER
nft delete element inet embedcni subnets6_64 { fd00:1::2 . fd00:1:: } # OWNER
`
			if want = strings.ReplaceAll(want, "OWNER", fmt.Sprintf("%q", nftC1)); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			h.wantFiltersAndShared(before)
		})
	}
}

// wantFiltersAndShared is like wantFilters, but allows sets and their rules
// that stay for the next container.
func (h *host) wantFiltersAndShared(want audit.Lines) {
	h.t.Helper()
	left, gone := audit.Diff(want, h.filters())
	left = audit.Lines(left).Without(audit.Shared)
	expect.Unchanged(h.t, "left behind", left, gone)
}
