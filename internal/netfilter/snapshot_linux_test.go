package netfilter

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/embedcni/cni/internal/batch"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/nft"
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
	if missing == 0 {
		t.Error("the damages did none")
	}
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
	snapshot := Read(Open(d.ns, Options{}))
	ask := func() {
		var wg sync.WaitGroup
		for _, r := range d.rules {
			wg.Add(1)
			go func() {
				defer wg.Done()
				if all, err := snapshot.For(Options{}).Missing(t.Context(), r); err != nil || len(all) > 0 {
					t.Errorf("missing %s, %v", textOfMissing(all), err)
				}
			}()
		}
		wg.Wait()
	}
	ask()
	d.sh("nft flush ruleset")
	ask()
}

// TestSnapshotWhileRulesChange: others add and remove rules all the time. A rule that
// stays is never missing.
func TestSnapshotWhileRulesChange(t *testing.T) {
	d := newDamaged(t)
	d.crowd(50)
	d.reset()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		fw := Open(d.ns, Options{Sockets: &nft.Pool{}})
		other := crowdRules(9000)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := errors.Join(fw.Add(t.Context(), other), fw.Remove(t.Context(), other)); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	for range 20 {
		snapshot := Read(d.fw)
		for _, r := range d.rules {
			if all, err := snapshot.Missing(t.Context(), r); err != nil || len(all) > 0 {
				t.Errorf("missing %s, %v", textOfMissing(all), err)
			}
		}
	}
	close(stop)
	wg.Wait()
}

// TestSpoofCheckIsRestored: each of its rules and chains, without a change to those of
// another container and of an administrator.
func TestSpoofCheckIsRestored(t *testing.T) {
	h := newHost(t, "nft")
	one := fwrules.SpoofCheck{ContainerID: "c1", IfName: "eth0", Port: "veth1", MAC: []byte{2, 0, 0, 0, 0, 1}}
	two := fwrules.SpoofCheck{ContainerID: "c2", IfName: "eth0", Port: "veth2", MAC: []byte{2, 0, 0, 0, 0, 2}}
	const chain = "cni-br-iface-c1-eth0"
	reset := func() {
		h.sh("nft flush ruleset")
		for _, s := range []fwrules.SpoofCheck{one, two} {
			must(t, h.fw.SpoofCheck(s.ContainerID, s.IfName).Add(t.Context(), s.Port, s.MAC))
		}
		h.sh("nft insert rule bridge nat PREROUTING counter comment admin; nft add rule bridge nat " + chain + "-mac counter comment admin")
	}
	missing := func(s fwrules.SpoofCheck) []fwrules.Missing {
		t.Helper()
		all, err := h.fw.MissingSpoofCheck(t.Context(), s)
		must(t, err)
		seen, err := Read(h.fw).MissingSpoofCheck(t.Context(), s)
		must(t, err)
		wantSameMissing(t, "spoof check", seen, all)
		return all
	}
	reset()
	before := h.filters()
	damages := []string{"flush chain bridge nat PREROUTING", "delete table bridge nat", "flush table bridge nat", "flush chain bridge nat " + chain}
	for _, r := range h.rulesOf(nft.Table{Family: nft.FamilyBridge, Name: "nat"}) {
		if !ofAdmin(r.Comment) && !strings.Contains(r.Comment, "c2") {
			damages = append(damages, fmt.Sprintf("delete rule bridge nat %s handle %d", r.Chain, r.Handle))
		}
	}
	for _, damage := range damages {
		reset()
		h.sh("nft " + damage)
		want := minus(before, minus(before, h.filters()).Without(func(l string) bool { return !ofAdmin(l) }))
		if all := missing(one); len(all) != 1 || all[0].Found != "" {
			t.Errorf("%s: missing %s", damage, textOfMissing(all))
		}
		for range 2 {
			must(t, h.fw.RestoreSpoofCheck(t.Context(), one))
			must(t, h.fw.RestoreSpoofCheck(t.Context(), two))
		}
		wantLines(t, damage, h.filters(), want)
		if all := missing(one); len(all) > 0 {
			t.Errorf("%s: still missing %s", damage, textOfMissing(all))
		}
		h.wantReturnBeforeDrop(chain + "-mac")
	}
	moved := one
	moved.MAC = two.MAC
	if all := missing(moved); len(all) != 1 || all[0].Found == "" {
		t.Errorf("for another address: %s", textOfMissing(all))
	}
	if err := h.fw.RestoreSpoofCheck(t.Context(), moved); err == nil {
		t.Error("a rule for another address was replaced")
	}
}

// TestSpoofChecksAreRestoredTogether: those of several containers in one transaction. One
// that cannot be restored does not keep the others from it.
func TestSpoofChecksAreRestoredTogether(t *testing.T) {
	h := newHost(t, "nft")
	var all []fwrules.SpoofCheck
	for i := range byte(8) {
		s := fwrules.SpoofCheck{ContainerID: fmt.Sprint("c", i), IfName: "eth0", Port: fmt.Sprint("veth", i), MAC: []byte{2, 0, 0, 0, 0, i}}
		must(t, h.fw.SpoofCheck(s.ContainerID, s.IfName).Add(t.Context(), s.Port, s.MAC))
		all = append(all, s)
	}
	restore := func(some ...fwrules.SpoofCheck) []error {
		t.Helper()
		batches := make([]*batch.Batch, len(some))
		for i, s := range some {
			batches[i] = &batch.Batch{}
			must(t, Open(h.ns, Options{Batch: batches[i]}).RestoreSpoofCheck(t.Context(), s))
		}
		return batch.FlushTogether(t.Context(), batches)
	}
	generation := func() (g uint32) {
		t.Helper()
		must(t, h.fw.sockets.Do(t.Context(), func(c *nft.Conn) (err error) {
			g, err = c.Generation()
			return err
		}))
		return g
	}
	before := h.filters()
	const mac = "cni-br-iface-c3-eth0-mac"
	for _, damage := range []string{"delete table bridge nat", "flush table bridge nat", "flush chain bridge nat PREROUTING", "flush chain bridge nat " + mac} {
		h.sh("nft " + damage)
		began := generation()
		must(t, errors.Join(restore(append(all, all[2])...)...))
		if got := generation() - began; got != 1 {
			t.Errorf("%s: %d transactions", damage, got)
		}
		wantLines(t, damage, h.filters(), before)
		h.wantReturnBeforeDrop(mac)
		must(t, errors.Join(restore(all...)...))
		if got := generation() - began; got != 1 {
			t.Errorf("%s: %d transactions, although nothing is missing", damage, got)
		}
	}
	h.sh("nft flush chain bridge nat PREROUTING")
	moved := all[3]
	moved.MAC = all[4].MAC
	for i, err := range restore(all[0], all[1], all[2], moved, all[4], all[5], all[6], all[7]) {
		if i == 3 && !errors.Is(err, fwrules.ErrInPlace) || i != 3 && err != nil {
			t.Errorf("c%d: %v", i, err)
		}
	}
	must(t, errors.Join(restore(all[3])...))
	wantLines(t, "one at another address", h.filters(), before)
}

func (h *host) wantReturnBeforeDrop(chain string) {
	h.t.Helper()
	h.sh(`nft list chain bridge nat ` + chain + ` | awk '/return/ {seen = 1} /drop/ {if (!seen) exit 1; found = 1} END {exit !found}'`)
}
