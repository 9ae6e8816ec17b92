package veth_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/netns"
)

// The namespaces are made in advance, for a batch of containers each.
const batchSize = 50

// benchmark times add or del with new containers. Deleting a pair waits for the
// kernel and would hide the cost of add, so del has its own benchmark.
func benchmark(b *testing.B, h *host, add, del func(i int) error) {
	for _, timed := range []string{"ADD", "DEL"} {
		b.Run(timed, func(b *testing.B) {
			b.ReportAllocs()
			var times []time.Duration
			for done := 0; done < b.N; done += batchSize {
				n := min(batchSize, b.N-done)
				phase := func(name string, fn func(int) error) {
					if timed == name {
						b.StartTimer()
						defer b.StopTimer()
					}
					for i := range n {
						begin := time.Now()
						if err := fn(i); err != nil {
							b.Fatal(err)
						}
						if timed == name {
							times = append(times, time.Since(begin))
						}
					}
				}
				b.StopTimer()
				phase("ADD", add)
				phase("DEL", del)
			}
			// The mean suffers from other load on the machine.
			slices.Sort(times)
			b.ReportMetric(float64(times[len(times)/2].Microseconds()), "µs-median")
			b.ReportMetric(float64(times[len(times)/10].Microseconds()), "µs-p10")
		})
	}
}

func containers(h *host) []*netns.Handle {
	var all []*netns.Handle
	for i := range batchSize {
		all = append(all, h.namespace(fmt.Sprint("c", i)))
	}
	return all
}

func benchmarkPlugin(b *testing.B, typ, conf string) {
	h := newHost(b)
	containers(h)
	call := func(i int) call {
		c := attaching{typ: typ, conf: fmt.Sprintf(conf, i+2)}.call()
		c.id = fmt.Sprint("c", i)
		return c
	}
	ctx := context.Background()
	benchmark(b, h,
		func(i int) error { _, err := h.run(ctx, "ADD", call(i)); return err },
		func(i int) error { _, err := h.run(ctx, "DEL", call(i)); return err })
}

const (
	benchmark4 = `"isGateway": true, "ipam": {"type": "static", "addresses": [{"address": "10.1.0.%d/24", "gateway": "10.1.0.1"}],
		"routes": [{"dst": "0.0.0.0/0"}]}`
	benchmarkDual = `"isGateway": true, "ipam": {"type": "static", "addresses": [{"address": "10.1.0.%d/24", "gateway": "10.1.0.1"}, {"address": "fd00:1::%[1]d/64", "gateway": "fd00:1::1"}],
		"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}`
)

func BenchmarkBridge(b *testing.B)     { benchmarkPlugin(b, "bridge", benchmark4) }
func BenchmarkBridgeDual(b *testing.B) { benchmarkPlugin(b, "bridge", benchmarkDual) }
func BenchmarkPTP(b *testing.B)        { benchmarkPlugin(b, "ptp", benchmark4) }
func BenchmarkPTPDual(b *testing.B)    { benchmarkPlugin(b, "ptp", benchmarkDual) }

// BenchmarkFloor sends only the necessary messages, through open sockets.
func BenchmarkFloor(b *testing.B) {
	h := newHost(b)
	all := containers(h)
	host, err := links.Dial(h.ns)
	if err != nil {
		b.Fatal(err)
	}
	defer host.Close()
	br, err := links.Bridge{Name: "cni0"}.Create(host)
	if err != nil {
		b.Fatal(err)
	}
	if err := host.Change(br.Index, links.Change{Set: unix.IFF_UP}); err != nil {
		b.Fatal(err)
	}
	conns := make([]*links.Conn, batchSize)
	for i, ns := range all {
		if conns[i], err = links.Dial(ns); err != nil {
			b.Fatal(err)
		}
		defer conns[i].Close()
	}
	pairs := make([]links.Pair, batchSize)
	benchmark(b, h,
		func(i int) (err error) {
			pairs[i], err = links.Veth{Name: ifName, Master: br.Index}.Create(host, all[i])
			if err != nil {
				return err
			}
			c, index := conns[i], pairs[i].Container.Index
			return errors.Join(c.AddAddress(index, netip.MustParsePrefix(fmt.Sprintf("10.1.0.%d/24", i+2)), 0), c.Up(index),
				c.AddRoute(index, links.Route{Dst: netip.MustParsePrefix("0.0.0.0/0"), Via: netip.MustParseAddr("10.1.0.1")}, true))
		},
		func(i int) error { return conns[i].Delete(pairs[i].Container.Index) })
}
