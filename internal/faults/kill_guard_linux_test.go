package faults_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netns"
)

// TestKilledGuards: a guard is killed while it repairs what was broken. The next one
// completes it, nothing of any container is lost, and nothing is left after their
// removal.
func TestKilledGuards(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	for i, backend := range []string{"", "nftables", "iptables"} {
		t.Run("backend "+backend, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, uint64(i)))
			h := newHost(t)
			set := h.inProcess(backend)
			expect.NoError(t, elsewhere(t, job{Verb: "ADD", ID: "warm", NetNS: h.container("warm"), Port: 9000, Settings: set}))
			expect.NoError(t, elsewhere(t, job{Verb: "DEL", ID: "warm", NetNS: h.netns("warm"), Settings: set}), netns.Remove(h.netns("warm")))
			before := h.audit()
			ids := []string{"c1", "c2", "c3"}
			for n, id := range ids {
				expect.NoError(t, elsewhere(t, job{Verb: "ADD", ID: id, NetNS: h.container(id), Port: int32(9001 + n), Settings: set}))
			}
			attached := h.lines()
			breaks := []string{"nft flush ruleset", "ip link set br0 down", "ip link del br0", "nft flush ruleset; ip link set br0 down"}
			hits := 0
			for n := range *guardKills {
				script := breaks[random.IntN(len(breaks))]
				out, err := exec.CommandContext(context.Background(), "sh", "-ec", script).CombinedOutput()
				expect.NoError(t, err)
				if len(out) > 0 {
					t.Fatalf("%s: %s", script, out)
				}
				p := begin(t, job{Verb: "GUARD", Settings: set})
				<-time.After(time.Duration(random.Int64N(int64(200 * time.Millisecond))))
				if p.kill() {
					hits++
				}
				h.guardUntilHealthy(t, set, ids)
				lost, added := audit.Diff(h.lines(), attached)
				if len(lost)+len(added) > 0 {
					t.Fatalf("kill %d after %q: not as attached:\n%s", n, script, strings.Join(append(lost, added...), "\n"))
				}
			}
			for _, id := range ids {
				expect.NoError(t, elsewhere(t, job{Verb: "DEL", ID: id, NetNS: h.netns(id), Settings: set}))
				if left := h.inside(id); len(left) > 0 {
					t.Errorf("left in %s: %q", id, left)
				}
				expect.NoError(t, netns.Remove(h.netns(id)))
			}
			left, gone := audit.Diff(before, h.audit())
			if len(left)+len(gone) > 0 {
				t.Errorf("left: %q, gone: %q", left, gone)
			}
			t.Logf("%d guards killed, %d of them at work: 0 harmed, %d leaks", *guardKills, hits, len(left))
		})
	}
}

// lines is audit without records, which say who has worked on a container.
func (h *host) lines() audit.Lines {
	return h.audit().Without(func(line string) bool { return strings.Contains(line, "/attachments/") })
}

// guardUntilHealthy runs a guard until nothing is missing.
func (h *host) guardUntilHealthy(t *testing.T, set settings, ids []string) {
	t.Helper()
	r := h.runtime(set)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Guard(ctx, cni.GuardOptions{}) }()
	for end := time.Now().Add(expect.Patience); ; {
		report, err := r.Health(ctx, cni.HealthOptions{WithoutCheck: true})
		expect.NoError(t, err)
		if report.Count(cni.StateHealthy) == len(ids) {
			break
		}
		if time.Now().After(end) {
			t.Fatal(fmt.Sprint("not healthy: ", report))
		}
	}
	cancel()
	expect.NoError(t, <-ended)
}
