package whereabouts

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

// impatient are deadlines shorter than whereabouts' own, which are two minutes for an ADD and one
// for a DEL. Without them its DEL may win against the library's minute, and it succeeds whatever
// became of the store. It begins before they end, on a machine that stalls too.
var impatient = cni.WithTimeouts(cni.Timeouts{Add: 3 * time.Second, Del: 3 * time.Second})

// TestASetupWithoutTheStoreLeavesNothing: it fails at the deadline. The host has nothing of it
// but the record, because the DEL has not reached the store either. Another Setup, when the
// store is back, begins anew.
func TestASetupWithoutTheStoreLeavesNothing(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	h, c1 := c.a, container(t, "c1")
	network := h.on(macvlan, bothFamilies)
	r := h.Runtime(network, impatient)
	calls := h.noteCalls()
	before := h.Audit()
	h.lose()
	err := c1.attach(t.Context(), r)
	expect.Is(t, err, context.DeadlineExceeded)
	expect.Says(t, "ADD", err, `IPAM plugin "whereabouts"`)
	h.onlyRecords(before)
	expect.Same(t, "on record", recorded(t, r), []string{"c1 failed"})
	expect.Same(t, "calls of whereabouts", calls(), "ADD\nDEL\n")

	h.reach()
	r = h.Runtime(network)
	expect.NoError(t, c1.attach(t.Context(), r))
	expect.Same(t, "the store has", c.held(t), linesOf(c1))
	c1.remove(t, r)
	expect.Same(t, "the store has", c.held(t), []string{})
}

// noteCalls has a shell note the verb of each call of whereabouts before it runs it. The
// function returns the notes.
func (h *host) noteCalls() (calls func() string) {
	h.t.Helper()
	notes, plugin := filepath.Join(h.Dir, "calls"), filepath.Join(h.PluginDir, "whereabouts")
	expect.NoError(h.t, os.Remove(plugin), os.WriteFile(plugin,
		fmt.Appendf(nil, "#!/bin/sh\necho $CNI_COMMAND >>%s\nexec %s\n", notes, os.Getenv(programVar)), 0o755))
	return func() string {
		h.t.Helper()
		return string(expect.Value(os.ReadFile(notes))(h.t))
	}
}

// TestARemovalWithoutTheStoreIsRepeated, by Remove, GC and Recover, until the store has
// answered. Meanwhile the containers stay on record, and their host has nothing else of them.
// CleanUp gives up what the store has.
func TestARemovalWithoutTheStoreIsRepeated(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	networks := []cni.Opt{c.a.on(macvlan, bothFamilies), c.b.on(bridge, bothFamilies)}
	a, b := c.a.Runtime(networks[0]), c.b.Runtime(networks[1])
	before := c.a.Audit()
	forced, collected, removed := c.a.setUp(a, "forced"), c.a.setUp(a, "gc"), c.a.setUp(a, "remove")
	recovered := c.b.setUp(b, "recover")
	lives := c.b.setUp(b, "lives")

	c.a.lose()
	c.b.lose()
	going := []*attached{forced, collected, removed, recovered}
	quick := []*cni.Runtime{c.a.Runtime(networks[0], impatient), c.b.Runtime(networks[1], impatient)}
	stay(t, going, func(i int) *cni.Runtime { return quick[i/3] })
	c.a.onlyRecords(before)
	expect.Same(t, "on record", recorded(t, a), []string{"forced failed", "gc failed", "remove failed"})
	expect.Same(t, "on record", recorded(t, b), []string{"lives attached", "recover failed"})
	expect.Same(t, "verdict", verdicts(t, b)[0], "lives: healthy [whereabouts]")
	expect.Value(a.CleanUp(t.Context(), cni.CleanUpTarget{ContainerID: "forced", Network: "lan", IfName: "eth0"}))(t)
	expect.Same(t, "on record", recorded(t, a), []string{"gc failed", "remove failed"})
	expect.Same(t, "the store has", c.held(t), linesOf(append(going, lives)...))

	c.a.reach()
	c.b.reach()
	a, b = c.a.Runtime(networks[0]), c.b.Runtime(networks[1]) // as after a restart
	removed.remove(t, a)
	awaitRetry(t, a)
	collection := expect.Value(a.GC(t.Context(), cni.GCOptions{KeepNone: true}))(t)
	expect.Succeeds(t, "GC", collection.Err())
	expect.Same(t, "GC has removed", collection.Removed, []string{"gc"})
	awaitRetry(t, b)
	recovery := expect.Value(b.Recover(t.Context()))(t)
	expect.Succeeds(t, "Recover", recovery.Err())
	expect.Same(t, "Recover has removed", recovery.Removed, []string{"recover"})
	expect.Same(t, "Recover has adopted", recovery.Adopted, []string{"lives"})
	expect.Same(t, "the store has", c.held(t), linesOf(forced, lives))

	// The pod gets its addresses back if it is attached again.
	had := slices.Clone(forced.addresses)
	expect.NoError(t, forced.attach(t.Context(), a))
	expect.Same(t, "addresses", forced.addresses, had)
	forced.remove(t, a)
	lives.remove(t, b)
	expect.Same(t, "the store has", c.held(t), []string{})
}

// stay removes containers at once, each by a Runtime: it fails at the deadline.
func stay(t *testing.T, going []*attached, by func(i int) *cni.Runtime) {
	t.Helper()
	failures := make([]error, len(going))
	expect.NoError(t, testhost.InParallel(len(going), func(i int) error {
		failures[i] = by(i).Remove(t.Context(), going[i].id, going[i].path)
		return nil
	}))
	for i, err := range failures {
		expect.Is(t, err, context.DeadlineExceeded)
		expect.Says(t, going[i].id, err, `IPAM plugin "whereabouts"`)
	}
}

// awaitRetry waits until the failed removals may be tried again: a second after the first
// failure. Nothing announces that moment but the clock.
func awaitRetry(t *testing.T, r *cni.Runtime) {
	t.Helper()
	for _, a := range expect.Value(r.Attachments())(t) {
		if a.Failures > 0 {
			expect.Same(t, "failures", a.Failures, 1)
			time.Sleep(time.Until(a.LastTry.Add(time.Second)))
		}
	}
}

// TestAHangingStoreHoldsUpNobodyElse: while the DEL of a container waits for an answer, a
// container of another network is attached and removed.
func TestAHangingStoreHoldsUpNobodyElse(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	h := c.a
	r := h.Runtime(h.on(macvlan, bothFamilies))
	other := h.Runtime(cni.WithConfListBytes([]byte(`{"cniVersion": "1.0.0", "name": "other", "plugins": [{"type": "macvlan", "master": "lan0",
		"ipam": {"type": "static", "addresses": [{"address": "10.2.0.1/24"}]}}]}`)))
	c1, c2 := h.setUp(r, "c1"), container(t, "c2")
	arrived, answer := make(chan struct{}), make(chan struct{})
	c.strikeAt("PATCH ippools/10.1.0.0-24", func(_ *http.Request, apply func()) {
		close(arrived)
		<-answer
		apply()
	})
	done := testhost.Begin(func() error { return r.Remove(t.Context(), c1.id, c1.path) })
	expect.Await(t, "the DEL's request", arrived)
	expect.Soon(t, "a container of another network", func() error {
		return errors.Join(c2.attach(t.Context(), other), other.Remove(t.Context(), c2.id, c2.path))
	})
	close(answer)
	expect.NoError(t, expect.Await(t, "Remove", done))
	expect.Same(t, "the store has", c.held(t), []string{})
}
