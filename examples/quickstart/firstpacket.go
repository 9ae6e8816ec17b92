package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/netns"
)

// firstPackets measures the time of a container's first packet and its answer.
// The time includes neighbour discovery. It must not include duplicate address
// detection. Each round uses new containers, one for each way and side, so that
// no neighbour is known.
type firstPackets struct {
	rt   *cni.Runtime
	host *netns.Handle
	took map[firstPacket][]time.Duration
	all  []firstPacket // in the order of the table
}

// firstPacket identifies a row of the table.
type firstPacket struct{ way, network, family string }

// measureFirstPackets prints the table. Each round attaches and detaches four
// containers.
func measureFirstPackets(ctx context.Context, out io.Writer, rt *cni.Runtime, rounds int) (err error) {
	host, err := netns.Current()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, host.Close()) }()
	server, err := serveEcho(ctx, host, echoPort)
	if err != nil {
		return err
	}
	defer server.Close()
	f := &firstPackets{rt: rt, host: host, took: map[firstPacket][]time.Duration{}}
	begin := time.Now()
	for i := range rounds {
		if err := f.round(ctx, i); err != nil {
			return fmt.Errorf("first packets: %w", err)
		}
	}
	f.print(out, rounds, time.Since(begin))
	return nil
}

func (f *firstPackets) round(ctx context.Context, number int) (err error) {
	all := make([]*container, 4)
	for i := range all {
		all[i] = &container{name: fmt.Sprintf("first-%d-%d", number, i)}
	}
	defer func() {
		err = errors.Join(err, each(all, func(c *container) error { return removeAll(ctx, io.Discard, f.rt, c) }))
	}()
	if err := each(all, func(c *container) error { return attachAll(ctx, io.Discard, f.rt, c) }); err != nil {
		return err
	}
	for _, c := range []*container{all[1], all[3]} {
		server, err := serveEcho(ctx, c.ns, echoPort)
		if err != nil {
			return err
		}
		defer server.Close()
	}
	for i := range all[0].result.Networks {
		ip, gateway := cni.Address.IP, func(a cni.Address) netip.Addr { return a.Gateway }
		if err := errors.Join(
			f.send(ctx, "container → container", all[0].ns, all[1].result.Networks[i], ip),
			f.send(ctx, "container → host", all[2].ns, all[2].result.Networks[i], gateway),
			f.send(ctx, "host → container", f.host, all[3].result.Networks[i], ip),
		); err != nil {
			return err
		}
	}
	return nil
}

// send measures one way to all addresses of a network.
func (f *firstPackets) send(ctx context.Context, way string, from *netns.Handle, n *cni.NetworkResult, to func(cni.Address) netip.Addr) error {
	for _, a := range addresses(n) {
		addr := to(a)
		if !addr.IsValid() {
			continue
		}
		took, err := probe{way, n.Name, from, "tcp", netip.AddrPortFrom(addr, echoPort)}.echo(ctx)
		if err != nil {
			return fmt.Errorf("%s by %s to %s: %w", way, n.Name, addr, err)
		}
		key := firstPacket{way, n.Name, familyOf(addr)}
		if f.took[key] == nil {
			f.all = append(f.all, key)
		}
		f.took[key] = append(f.took[key], took)
	}
	return nil
}

func (f *firstPackets) print(out io.Writer, rounds int, took time.Duration) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row(w, "FIRST PACKET, WITH ITS ANSWER", "NETWORK", "FAMILY", "   MEDIAN", "  SLOWEST")
	for _, key := range f.all {
		times := slices.Sorted(slices.Values(f.took[key]))
		row(w, key.way, key.network, key.family, precise(times[len(times)/2]), precise(times[len(times)-1]))
	}
	w.Flush()
	fmt.Fprintf(out, "of %d new containers each, in %.1f s\n\n", rounds, took.Seconds())
}

// each calls fn for all containers concurrently and waits for all calls.
func each(all []*container, fn func(*container) error) error {
	errs := make([]error, len(all))
	var done sync.WaitGroup
	for i, c := range all {
		done.Add(1)
		go func() {
			defer done.Done()
			errs[i] = fn(c)
		}()
	}
	done.Wait()
	return errors.Join(errs...)
}

func precise(d time.Duration) string { return fmt.Sprintf("%6.2f ms", d.Seconds()*1000) }

func familyOf(a netip.Addr) string {
	if a.Is6() {
		return "IPv6"
	}
	return "IPv4"
}
