package netfilter

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"
)

// crowd makes the rules of n containers, of many at once: one transaction of all
// of them would be longer than the tool can send.
func crowd(b *testing.B, fw *Firewalls, n int) {
	b.Helper()
	const many = 50
	for start := 0; start < n; start += many {
		var all Rules
		for i := start; i < min(start+many, n); i++ {
			r := everything(fmt.Sprint("crowd", i), 100+i)
			all.Masquerade = append(all.Masquerade, r.Masquerade...)
			all.HostPorts = append(all.HostPorts, r.HostPorts...)
			all.Forward = append(all.Forward, r.Forward...)
		}
		if err := fw.Add(context.Background(), IPTables, all); err != nil {
			b.Fatal(err)
		}
	}
}

// What one container costs with so many others there: all of its rules, of one
// family and of both.
func BenchmarkIPTables(b *testing.B) {
	for _, variant := range []string{"nft", "legacy"} {
		for _, n := range []int{10, 300, 1000} {
			fw := Open(newHost(b, variant).ns)
			var sockets Sockets
			b.Cleanup(func() {
				if err := sockets.Close(); err != nil {
					b.Error(err)
				}
			})
			ctx := WithSockets(context.Background(), &sockets)
			crowd(b, fw, n)
			for name, r := range map[string]Rules{"dual": everything("c1", 4), "v4": onlyV4(everything("c1", 4))} {
				b.Run(fmt.Sprintf("%s/%d/%s", variant, n, name), func(b *testing.B) {
					var adding, removing time.Duration
					for range b.N {
						start := time.Now()
						if err := fw.Add(ctx, IPTables, r); err != nil {
							b.Fatal(err)
						}
						adding += time.Since(start)
						start = time.Now()
						if err := fw.Remove(ctx, IPTables, r); err != nil {
							b.Fatal(err)
						}
						removing += time.Since(start)
					}
					b.ReportMetric(float64(adding.Microseconds())/float64(b.N)/1000, "ms/add")
					b.ReportMetric(float64(removing.Microseconds())/float64(b.N)/1000, "ms/remove")
				})
			}
		}
	}
}

// onlyV4 leaves the IPv6 addresses out.
func onlyV4(r Rules) Rules {
	r.Masquerade[0].Addresses = r.Masquerade[0].Addresses[:1]
	r.HostPorts[0].V6 = netip.Prefix{}
	r.Forward[0].Addresses = r.Forward[0].Addresses[:1]
	return r
}
