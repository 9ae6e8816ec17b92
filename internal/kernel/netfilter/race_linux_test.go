package netfilter

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/nft"
)

// TestSweepWhileOthersAreAdded: sweeps run beside ADDs of others. Each
// container is complete or absent.
func TestSweepWhileOthersAreAdded(t *testing.T) {
	for _, variant := range []string{"nft", "legacy"} {
		for _, backend := range []string{"iptables", "nftables"} {
			t.Run(backend+" "+variant, func(t *testing.T) {
				h := newHost(t, variant)
				list := h.network("podnet", "1", strings.ReplaceAll(common, "BACKEND", backend))
				var leaving, coming []attachment
				for i := range 3 {
					leaving = append(leaving, h.mustAdd(list, fmt.Sprint("go", i), "eth0", fewMappings(1000+i)))
				}
				size := strings.Count(h.find(leaving[0].target()).String(), "\n")
				for i := range 3 {
					id := fmt.Sprint("come", i)
					h.newNetNS(id)
					coming = append(coming, h.attachment(list, id, "eth0", fewMappings(2000+i)))
				}
				h.together(leaving, coming)
				for _, a := range leaving {
					plan := h.find(a.target())
					expect.That(t, plan.Empty(), "left of %s:\n%s", a.rt.ContainerID, plan)
				}
				for _, a := range coming {
					plan := h.sweep(a.target())
					n := strings.Count(plan.String(), "\n")
					expect.That(t, n == size, "of %s there were %d things, want %d:\n%s", a.rt.ContainerID, n, size, plan)
				}
				left := h.filters().Without(audit.Shared)
				expect.That(t, len(left) == 0, "left:\n%s", strings.Join(left, "\n"))
			})
		}
	}
}

// together sweeps some attachments while it adds the others.
func (h *host) together(sweep, add []attachment) {
	h.t.Helper()
	var wg sync.WaitGroup
	errs := make([]error, len(sweep)+len(add))
	fw := Open(h.ns, Options{})
	for i, a := range sweep {
		wg.Go(func() {
			plan, err := Find(h.t.Context(), fw, a.target())
			errs[i] = errors.Join(err, plan.Apply(h.t.Context()))
		})
	}
	for i := range add {
		wg.Go(func() {
			errs[len(sweep)+i] = h.ns.Do(func() error { return h.run(&add[i]) })
		})
	}
	wg.Wait()
	expect.NoError(h.t, errors.Join(errs...))
}

// raceRules are those of attachment i, each with lengths of prefix that the
// first ones have to make sets for.
func raceRules(i int) testRules {
	o := Owner{Network: "podnet", ContainerID: fmt.Sprint("c", i), IfName: "eth0"}
	v4 := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 20+i%4)
	return testRules{
		Masquerade: []testMasquerade{{Owner: o, Addresses: []netip.Prefix{v4}}},
		HostPorts: []testPorts{{Owner: o, V4: v4, SNAT: true,
			Ports: []HostPort{{HostPort: uint16(1000 + i), ContainerPort: 80, Protocol: "tcp"}}}},
	}
}

// atOnce runs fn concurrently for n numbers.
func atOnce(from, n int, fn func(i int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			errs[i] = fn(from + i)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// raceVariable makes the test binary the second process. Its value is the first
// number.
const raceVariable = "NETFILTER_RACE_FROM"

const racers = 64

// raceInThisProcess adds and checks 64 attachments concurrently, and removes
// every other one while it does so again.
func raceInThisProcess(ctx context.Context, fw *Firewalls, from int) error {
	if err := atOnce(from, racers, func(i int) error { return fw.Add(ctx, raceRules(i).rules()...) }); err != nil {
		return err
	}
	if err := atOnce(from, racers, func(i int) error { return fw.Check(ctx, raceRules(i)) }); err != nil {
		return err
	}
	return atOnce(from, racers, func(i int) error {
		if i%2 == 0 {
			return fw.Remove(ctx, raceRules(i).rules()...)
		}
		return fw.Add(ctx, raceRules(i).rules()...)
	})
}

// TestNativeRace: two processes with 64 attachments each, in a namespace
// without the table. None is lost, and none is left over.
func TestNativeRace(t *testing.T) {
	if from := os.Getenv(raceVariable); from != "" {
		n := expect.Value(strconv.Atoi(from))(t)
		expect.NoError(t, raceInThisProcess(t.Context(), Open(nil, Options{}), n))
		return
	}
	for _, kept := range []bool{true, false} {
		t.Run(fmt.Sprintf("sockets kept=%t", kept), func(t *testing.T) {
			h := newHost(t, "nft")
			fw := Open(h.ns, Options{})
			if kept {
				fw = Open(h.ns, Options{Sockets: &nft.Pool{}})
			}
			var out strings.Builder
			other := exec.Command("/proc/self/exe", "-test.run", "^TestNativeRace$")
			other.Env = append(os.Environ(), raceVariable+"=500")
			other.Stdout, other.Stderr = &out, &out
			if err := other.Start(); err != nil { // in the host's namespace, like this thread
				t.Fatal(err)
			}
			expect.NoError(t, raceInThisProcess(t.Context(), fw, 0))
			err := other.Wait()
			expect.Must(t, err == nil, "the other process: %v\n%s", err, out.String())
			for _, from := range []int{0, 500} {
				for i := from; i < from+racers; i++ {
					err := h.fw.Check(t.Context(), raceRules(i))
					expect.That(t, (err == nil) == (i%2 == 1), "attachment %d: %v", i, err)
				}
			}
			expect.Same(t, "elements", len(h.filters().Without(audit.Shared)), 5*racers)
		})
	}
}
