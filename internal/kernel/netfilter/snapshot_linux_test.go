package netfilter

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/nft"
)

// TestSnapshotIsTheKernel: after random damages, and with rules of others in the places
// of missing ones, a snapshot says of each container what the kernel says, whether or
// not the form is known.
func TestSnapshotIsTheKernel(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	d := newDamaged(t)
	d.reset()
	scripts := append(d.ofNative(), d.others()...)
	missing := 0
	for range 20 {
		d.reset()
		var done []string
		for range random.IntN(6) {
			one := scripts[random.IntN(len(scripts))]
			done = append(done, one)
			d.sh("(" + one + ") 2>/dev/null || true") // two can exclude each other
		}
		missing += len(d.missing(strings.Join(done, "; ")))
	}
	expect.That(t, missing != 0, "the damages did none")
}

// others returns commands that put rules of somebody else in the places of ours.
func (d *damaged) others() (scripts []string) {
	p := d.rules[0].HostPorts[0].Ports[0].HostPort
	return []string{
		fmt.Sprintf("nft 'delete element inet embedcni hostports4 { tcp . %d }; add element inet embedcni hostports4 { tcp . %d comment \"x\" : 10.1.0.9 . 80 }'", p, p),
		"nft 'delete element inet embedcni containers4 { 10.1.0.4 }; add element inet embedcni containers4 { 10.1.0.4 comment \"x\" }'",
		"nft add rule inet embedcni postrouting counter comment x",
		"nft flush chain inet embedcni postrouting; nft add rule inet embedcni postrouting counter comment x",
	}
}

// TestSnapshotIsReadOnce: rules that go later are still in it, and all callers share
// what one has read.
func TestSnapshotIsReadOnce(t *testing.T) {
	d := newDamaged(t)
	d.reset()
	snapshot := Open(d.ns, Options{}).Snapshot()
	ask := func() {
		var wg sync.WaitGroup
		for _, r := range d.rules {
			wg.Go(func() {
				all, err := snapshot.For(Options{}).Missing(t.Context(), r.rules()...)
				expect.That(t, err == nil && len(all) == 0, "missing %s, %v", textOfMissing(all), err)
			})
		}
		wg.Wait()
	}
	ask()
	d.sh("nft flush ruleset")
	ask()
}

// crowd adds so many attachments, hundreds in a transaction.
func (h *host) crowd(n int) {
	h.t.Helper()
	for from := 0; from < n; from += 300 {
		var r testRules
		for i := from; i < min(n, from+300); i++ {
			one := crowdRules(i)
			r.Masquerade = append(r.Masquerade, one.Masquerade...)
			r.HostPorts = append(r.HostPorts, one.HostPorts...)
		}
		expect.NoError(h.t, h.fw.Add(h.t.Context(), r.rules()...))
	}
}

// crowdRules are a masquerade and one port, as of the container of that number.
func crowdRules(i int) testRules {
	o := Owner{Network: "podnet", ContainerID: fmt.Sprintf("%064x", i), IfName: "eth0"}
	addr := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 16)
	return testRules{
		Masquerade: []testMasquerade{{Owner: o, Addresses: []netip.Prefix{addr}}},
		HostPorts: []testPorts{{Owner: o, V4: addr, SNAT: true,
			Ports: []HostPort{{HostPort: uint16(10000 + i), ContainerPort: 80, Protocol: "tcp"}}}},
	}
}

// TestSnapshotWhileRulesChange: others add and remove rules all the time. A rule that
// stays is never missing.
func TestSnapshotWhileRulesChange(t *testing.T) {
	d := newDamaged(t)
	d.crowd(50)
	d.reset()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		fw := Open(d.ns, Options{Sockets: &nft.Pool{}})
		other := crowdRules(9000)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := errors.Join(fw.Add(t.Context(), other.rules()...), fw.Remove(t.Context(), other.rules()...)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 20 {
		snapshot := d.fw.Snapshot()
		for _, r := range d.rules {
			if all, err := snapshot.Missing(t.Context(), r.rules()...); err != nil || len(all) > 0 {
				t.Errorf("missing %s, %v", textOfMissing(all), err)
			}
		}
	}
	close(stop)
	wg.Wait()
}
