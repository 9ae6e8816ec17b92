package faults_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/guard"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

// guardsPerHost is the number of guards that are killed on one host.
const guardsPerHost = 6

// killGuards is M16 for Guard: a guard is killed while it repairs several breakages. The
// next guard, or Recover, completes it; nothing of any container is lost, and nothing is
// left after their removal.
func (b *board) killGuards(t *testing.T) {
	// So many are repaired from one look.
	b.killRepairing(t, "guard killed, guarded or recovered again", 18, *guardKills, guardsPerHost,
		[]string{"c1", "c2", "c3", "c4", "c5"}, (*living).killGuard)
}

// killGuard breaks the containers, kills the guard that repairs them at a random moment,
// and completes its work. The first guard of either sort on a host is killed when it has
// repaired everything, which takes the time within which the others are killed. It reports
// whether a guard was killed after it had repaired something, and before it had repaired
// all.
func (l *living) killGuard(attached audit.Lines) (hit bool) {
	l.t.Helper()
	broken := l.someBreakages()
	watched := l.random.IntN(2) == 0
	whole := fmt.Sprintf("guard, watching: %t", watched)
	recovers := l.random.IntN(2) == 0
	p, damaged := l.guardThe(broken, watched)
	begun := time.Now()
	if took, ok := l.took[whole]; ok {
		<-time.After(time.Duration(l.random.Int64N(int64(took))))
	} else {
		l.untilHealthy()
		l.took[whole] = time.Since(begun)
	}
	if !p.kill() {
		l.say("the guard has ended by itself")
	}
	// A program that the guard has started may run on, and has the container meanwhile.
	left := l.missing(cni.ErrBusy)
	if recovers {
		l.restart(l.set)
	} else {
		l.guardUntilHealthy()
	}
	what := fmt.Sprintf("%s (watched: %t; of %d missing parts %d are left; then Recover: %t)", broken, watched, damaged, left, recovers)
	if missing := l.missing(); missing > 0 {
		l.say("%d parts are missing after %s", missing, what)
	}
	if lost, added := audit.Diff(l.unrecorded(), attached); len(lost)+len(added) > 0 {
		l.say("not as attached after %s:\n%s", what, strings.Join(append(lost, added...), "\n"))
	}
	for _, h := range l.homes {
		h.look()
	}
	return 0 < left && left < damaged
}

// guardThe starts a guard and breaks the containers, before that or under its eyes. It
// returns the number of parts that are missing before the guard does anything.
func (l *living) guardThe(broken breakdown, watched bool) (p *process, damaged int) {
	l.t.Helper()
	if watched { // it is stopped meanwhile, so that the parts can be counted
		p = begin(l.t, job{Verb: "GUARD", Settings: l.set})
		line := expect.Value(p.out.ReadString('\n'))(l.t)
		expect.Must(l.t, line == guardSaysBegun, "the guard did not begin: %q", line)
		expect.NoError(l.t, p.cmd.Process.Signal(syscall.SIGSTOP))
	}
	for _, b := range broken {
		expect.NoError(l.t, b.do(l, b.of))
	}
	damaged = l.missing()
	if watched {
		expect.NoError(l.t, p.cmd.Process.Signal(syscall.SIGCONT))
	} else {
		p = begin(l.t, job{Verb: "GUARD", Settings: l.set})
	}
	return p, damaged
}

// breakdown is several breakages, each of one container.
type breakdown []struct {
	breakage
	of *home
}

func (b breakdown) String() string {
	var names []string
	for _, one := range b {
		names = append(names, one.name+" of "+one.of.id)
	}
	return strings.Join(names, ", ")
}

// someBreakages chooses two to four breakages. A bridge is deleted last: the others need
// it.
func (l *living) someBreakages() (chosen breakdown) {
	all := slices.DeleteFunc(breakages(), func(b breakage) bool { return b.not == l.kind })
	l.random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	all = all[:min(2+l.random.IntN(3), len(all))]
	slices.SortStableFunc(all, func(a, b breakage) int { return cmp.Compare(a.last, b.last) })
	for _, b := range all {
		chosen = append(chosen, struct {
			breakage
			of *home
		}{b, l.homes[l.random.IntN(len(l.homes))]})
	}
	return chosen
}

// guardSaysBegun is the line that a guard in a process of its own prints.
const guardSaysBegun = "guarding\n"

// guardAloud guards until it is killed. It prints when it has begun, and has looked once
// at all containers.
func guardAloud(ctx context.Context, r *cni.Runtime) error {
	var once sync.Once
	return guard.Run(ctx, r, guard.Options{Report: func(e guard.Event) {
		if e.Kind == guard.Looked {
			once.Do(func() { fmt.Print(guardSaysBegun) })
		}
	}})
}

// unrecorded is the audit without records and what belongs to them, which say who has
// worked on a container.
func (l *living) unrecorded() audit.Lines {
	return l.audit().Without(func(line string) bool {
		return strings.Contains(line, "/attachments/") || l.moves && audit.IsRule(line)
	})
}

// guardUntilHealthy runs a guard until nothing is missing.
func (l *living) guardUntilHealthy() {
	l.t.Helper()
	r := l.runtime(l.set)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- guard.Run(ctx, r, guard.Options{}) }()
	l.untilHealthy()
	cancel()
	l.ok("the next guard", expect.Await(l.t, "the guard's end", ended))
}

func (l *living) untilHealthy() {
	l.t.Helper()
	expect.Eventually(l.t, "healthy containers", func() bool { return testhost.Healthy(l.health()) == len(l.homes) })
}

// missing returns the number of differences of all containers. Each must have a verdict,
// or one of these reasons why it has none.
func (l *living) missing(unless ...error) (n int) {
	l.t.Helper()
	report := l.health()
	for _, h := range report {
		n += len(h.Differences)
		if h.State != cni.StateHealthy && h.State != cni.StateBroken &&
			!slices.ContainsFunc(unless, func(reason error) bool { return errors.Is(h.Reason, reason) }) {
			l.say("no verdict on a container: %v", h)
		}
	}
	if len(report) != len(l.homes) {
		l.say("not all containers have a verdict: %v", report)
	}
	return n
}

func (l *living) health() []cni.Health {
	l.t.Helper()
	return expect.Value(l.runtime(l.set).Health(context.Background(), cni.HealthOptions{WithoutCheck: true}))(l.t)
}
