package behaviour_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// TestRecoverBesideCalls: while Recover looks at all containers again and again, each is attached,
// checked and removed, or dies and is attached anew. No call fails, Recover takes nothing from
// the living, and nothing is left.
func TestRecoverBesideCalls(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	h := newRealHost(t)
	b := portBackends()[0]
	r := h.forwarding(b, h.portNetwork("net", "1", b), cni.WithBuiltinPlugins(), cni.WithHostNetNS(h.Path("netns", "host")))
	dies(t, r, "warm", mapped(mapping("tcp", "", 8079))) // makes the bridge and the tables
	expect.NoError(t, r.Remove(t.Context(), "warm", ""))
	before := h.Audit()
	const n, rounds = 6, 12
	random := rand.New(rand.NewPCG(seed, 0))
	looked := make(chan struct{})
	var all [n]*mortal
	for i := range all {
		m := &mortal{realHost: h, r: r, looked: looked, id: fmt.Sprint("c", i), path: h.Container(fmt.Sprint("c", i)), port: mapped(mapping("tcp", "", int32(8080+i)))}
		for range rounds {
			task, kill := "", func() {}
			if random.IntN(3) == 0 {
				task, kill = testhost.NewTask(t)
			}
			m.tasks, m.kill, m.checks = append(m.tasks, task), append(m.kill, kill), append(m.checks, random.IntN(3))
		}
		all[i] = m
	}
	ended := make(chan struct{})
	var looks, adopted, removed int
	var recovering sync.WaitGroup
	recovering.Go(func() {
		for more := true; more; looks++ {
			select {
			case <-ended:
				more = false
			default:
			}
			report, err := r.Recover(t.Context())
			expect.Succeeds(t, "Recover", errors.Join(err, report.Err()))
			for id, why := range report.Kept {
				expect.That(t, errors.Is(why, cni.ErrInvalidNetNS), "%s is in doubt: %v", id, why) // else its task is dead
			}
			adopted, removed = adopted+len(report.Adopted), removed+len(report.Removed)
			select {
			case looked <- struct{}{}:
			default: // nobody waits
			}
		}
	})
	err := testhost.InParallel(n, func(i int) error {
		for round := range rounds {
			if err := all[i].round(t.Context(), round); err != nil {
				return fmt.Errorf("%s, round %d: %w", all[i].id, round, err)
			}
		}
		return nil
	})
	close(ended)
	recovering.Wait()
	expect.NoError(t, err)
	t.Logf("%d calls of Recover beside %d rounds: %d containers adopted, %d removed", looks, n*rounds, adopted, removed)
	expect.That(t, adopted > 0, "Recover has met no container")
	h.WantClean(before)
}

// mortal is a container that in some rounds dies as a task, and is attached anew.
type mortal struct {
	*realHost
	r        *cni.Runtime
	id, path string
	port     cni.NamespaceOpts
	tasks    []string // of each round, or empty
	kill     []func()
	looked   <-chan struct{} // gets an element after a Recover, if somebody waits
	checks   []int
}

func (m *mortal) round(ctx context.Context, n int) error {
	if m.tasks[n] != "" {
		if err := m.die(ctx, n); err != nil {
			return err
		}
	}
	if _, err := m.r.Setup(ctx, m.id, m.path, m.port); err != nil {
		return err
	}
	for range m.checks[n] {
		if err := m.r.Check(ctx, m.id, m.path); err != nil {
			return err
		}
	}
	return m.r.Remove(ctx, m.id, m.path)
}

// unpin removes the library's pin of the namespace.
func (m *mortal) unpin() error {
	if err := netns.Remove(m.Pin(m.id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// die attaches a task that ends. Its namespace is kept until the next Setup; or it ends too, and
// in some rounds Recover is first.
func (m *mortal) die(ctx context.Context, n int) error {
	if _, err := m.r.Setup(ctx, m.id, m.tasks[n], m.port); err != nil {
		return err
	}
	m.kill[n]()
	if n%3 == 0 {
		return nil
	}
	if err := m.unpin(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, expect.Patience, errors.New("Recover does not remove it"))
	defer cancel()
	for n%3 == 1 {
		found, err := m.r.Attachments(m.id)
		if len(found) == 0 || err != nil {
			return err
		}
		if err := m.unpin(); err != nil { // a Recover that had begun may have pinned it again
			return err
		}
		select {
		case <-m.looked:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
