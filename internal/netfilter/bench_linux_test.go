package netfilter

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/nft"
)

// crowd adds so many attachments, hundreds in a transaction.
func (h *host) crowd(n int) {
	h.t.Helper()
	for from := 0; from < n; from += 300 {
		var r fwrules.Rules
		for i := from; i < min(n, from+300); i++ {
			one := crowdRules(i)
			r.Masquerade = append(r.Masquerade, one.Masquerade...)
			r.HostPorts = append(r.HostPorts, one.HostPorts...)
		}
		if err := h.fw.Add(h.t.Context(), r); err != nil {
			h.t.Fatal(err)
		}
	}
}

// crowdRules are a masquerade and one port, as of the container of that number.
func crowdRules(i int) fwrules.Rules {
	o := fwrules.Owner{Network: "podnet", ContainerID: fmt.Sprintf("%064x", i), IfName: "eth0"}
	addr := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 16)
	return fwrules.Rules{
		Masquerade: []fwrules.Masquerade{{Owner: o, Addresses: []netip.Prefix{addr}}},
		HostPorts: []fwrules.HostPorts{{Owner: o, V4: addr, SNAT: true,
			Ports: []fwrules.HostPort{{HostPort: uint16(10000 + i), ContainerPort: 80, Protocol: "tcp"}}}},
	}
}

// BenchmarkAddAndRemove is one attachment's rules beside those of many others.
func BenchmarkAddAndRemove(b *testing.B) {
	for _, kept := range []bool{true, false} {
		for _, n := range []int{10, 1000, 10000} {
			b.Run(fmt.Sprintf("sockets kept=%t/%d", kept, n), func(b *testing.B) { benchmarkAddAndRemove(b, kept, n) })
		}
	}
}

func benchmarkAddAndRemove(b *testing.B, kept bool, n int) {
	h := newHost(b, "nft")
	h.crowd(n)
	ctx := b.Context()
	open := func() *Firewalls { return Open(h.ns, Options{}) }
	if kept {
		sockets := &nft.Pool{}
		defer sockets.Close()
		open = func() *Firewalls { return Open(h.ns, Options{Sockets: sockets}) }
	}
	r := crowdRules(n)
	var adding, removing time.Duration
	for b.Loop() {
		start := time.Now()
		if err := open().Add(ctx, r); err != nil {
			b.Fatal(err)
		}
		added := time.Now()
		if err := open().Remove(ctx, r); err != nil {
			b.Fatal(err)
		}
		adding += added.Sub(start)
		removing += time.Since(added)
	}
	b.ReportMetric(float64(adding.Microseconds())/float64(b.N), "µs/add")
	b.ReportMetric(float64(removing.Microseconds())/float64(b.N), "µs/remove")
}
