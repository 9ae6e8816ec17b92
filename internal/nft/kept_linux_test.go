package nft

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/netns"
)

// crowd is a namespace with a long chain, whose rules a Pool keeps.
type crowd struct {
	t    *testing.T
	ns   *netns.Handle
	pool Pool
}

func newCrowd(t *testing.T) *crowd {
	t.Helper()
	w := &crowd{t: t, ns: nettest.New(t)}
	t.Cleanup(func() { expect.NoError(t, w.pool.Close()) })
	w.refill()
	w.look() // and finds that the chain is long
	w.look()
	return w
}

// refill makes the chain, with many rules.
func (w *crowd) refill() {
	msgs := []Message{NewTable(ipTable(), ""), NewChain(ipTable(), "c", nil, "")}
	for i := range 2 * longChain {
		msgs = append(msgs, w.rule(i))
	}
	w.transact(msgs...)
}

func (w *crowd) rule(i int) Message {
	return NewRule(ipTable(), "c", Exprs(nil).Source(FamilyIPv4, Reg(0)).Equal([]byte{10, 1, byte(i >> 8), byte(i)}).Accept(), fmt.Sprint("rule ", i))
}

func (w *crowd) do(p *Pool, fn func(c *Conn) error) {
	w.t.Helper()
	if err := p.Do(w.ns, fn); err != nil {
		w.t.Fatal(err)
	}
}

func (w *crowd) transact(msgs ...Message) {
	w.t.Helper()
	w.do(&w.pool, func(c *Conn) error { return c.Transact(msgs, nil) })
}

// look returns the rules as the Pool's users see them.
func (w *crowd) look() []Object {
	w.t.Helper()
	return w.rules(&w.pool)
}

func (w *crowd) rules(p *Pool) (all []Object) {
	w.t.Helper()
	w.do(p, func(c *Conn) error {
		all = nil
		return c.Rules(ipTable(), "c", nil, func(r Rule) error {
			o := r.Object(ipTable())
			o.Comment += " " + r.Exprs.String()
			all = append(all, o)
			return nil
		})
	})
	return all
}

// same fails unless the Pool's users see the kernel's rules.
func (w *crowd) same(after string) {
	w.t.Helper()
	if got, want := w.look(), w.rules(nil); !slices.Equal(got, want) {
		w.t.Fatalf("after %s: %d rules %v, want %d %v", after, len(got), got, len(want), want)
	}
}

// reads returns how often a list of the chain was read since it is kept.
func (w *crowd) reads() (n int) {
	w.t.Helper()
	w.do(&w.pool, func(c *Conn) error {
		c.keeper.mu.Lock()
		defer c.keeper.mu.Unlock()
		n = c.keeper.reads
		return nil
	})
	return n
}

// TestOwnChangesAreNotReadAgain: after a transaction of the Pool's, the rules are known
// without a list.
func TestOwnChangesAreNotReadAgain(t *testing.T) {
	w := newCrowd(t)
	if n := w.reads(); n != 1 {
		t.Fatalf("the list was read %d times, want once", n)
	}
	w.transact(w.rule(1000))
	w.same("an addition")
	w.transact(InsertRule(ipTable(), "c", Exprs(nil).Drop(), "first"), NewTable(Table{FamilyIPv4, "another"}, ""))
	w.same("an insertion")
	all := w.look()
	w.transact(all[0].Deletion(), all[len(all)-1].Deletion(), w.rule(1001))
	w.same("deletions")
	if n := w.reads(); n != 1 {
		t.Errorf("the list was read %d times, want once", n)
	}
}

// TestChangesOfOthersAreRead: also one between two own transactions, and one that leaves
// the chain short.
func TestChangesOfOthersAreRead(t *testing.T) {
	w := newCrowd(t)
	nft(t, w.ns, "insert rule ip t c drop\n")
	w.same("another's rule")
	nft(t, w.ns, "add rule ip t c drop\n")
	w.transact(w.rule(1000))
	w.same("another's rule and an own one")
	nft(t, w.ns, "flush chain ip t c; add rule ip t c drop\n")
	w.transact(w.rule(1001))
	w.same("a flush and an own rule")
	nft(t, w.ns, "flush ruleset\n")
	w.same("a flush of everything")
	w.refill()
	w.same("a refill")
}

// TestARefusedTransactionChangesNoList: nor does one that comes too late.
func TestARefusedTransactionChangesNoList(t *testing.T) {
	w := newCrowd(t)
	reads := w.reads()
	w.do(&w.pool, func(c *Conn) error {
		generation, err := c.Generation()
		expect.NoError(t, err)
		expect.Is(t, c.Transact([]Message{w.rule(1000), NewRule(ipTable(), "no such chain", Exprs(nil).Accept(), "")}, nil), unix.ENOENT)
		expect.NoError(t, c.Transact([]Message{w.rule(1001)}, &generation))
		expect.Is(t, c.Transact([]Message{w.rule(1002)}, &generation), ErrChanged)
		return nil
	})
	w.same("refused transactions")
	if n := w.reads(); n != reads {
		t.Errorf("the list was read %d times more", n-reads)
	}
}

// TestManyNewRules: more than the kernel is asked to send back.
func TestManyNewRules(t *testing.T) {
	w := newCrowd(t)
	var msgs []Message
	for i := range 3 * mostAnswers {
		msgs = append(msgs, w.rule(1000+i))
	}
	w.transact(msgs...)
	w.same("many additions")
	w.transact(w.rule(3000))
	w.same("one more")
}

// TestAChainIsDeletedWithItsRules: the kernel reports none of them, as they would not fit
// into the socket beside the answer.
func TestAChainIsDeletedWithItsRules(t *testing.T) {
	w := newCrowd(t)
	msgs := []Message{NewChain(ipTable(), "big", nil, "")}
	for range 5000 {
		msgs = append(msgs, NewRule(ipTable(), "big", Exprs(nil).Drop(), ""))
	}
	w.do(nil, func(c *Conn) error { return c.Transact(msgs, nil) })
	w.look()
	w.transact(Object{Table: ipTable(), Chain: "big"}.Deletion())
	w.same("the deletion of a big chain")
}

// TestAStopIsNoChange: what changes behind the rule at which a look has stopped does not
// matter to it.
func TestAStopIsNoChange(t *testing.T) {
	w := newCrowd(t)
	var msgs []Message
	for i := range 2000 {
		msgs = append(msgs, w.rule(100+i))
	}
	w.transact(msgs...)
	w.do(nil, func(c *Conn) error {
		return c.Rules(ipTable(), "c", nil, func(Rule) error {
			nft(t, w.ns, "add rule ip t c drop\n")
			return ErrStop
		})
	})
}

// TestKeptListsAreTheKernels: after any sequence of changes, own ones and others'.
func TestKeptListsAreTheKernels(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	w := newCrowd(t)
	another := crowd{t: t, ns: w.ns}
	t.Cleanup(func() { expect.NoError(t, another.pool.Close()) })
	some := func(p *Pool) []Message {
		var msgs []Message
		all := w.rules(p)
		random.Shuffle(len(all), func(i, k int) { all[i], all[k] = all[k], all[i] })
		for i := range 1 + random.IntN(3) {
			switch random.IntN(3) {
			case 0:
				msgs = append(msgs, w.rule(random.IntN(1<<16)))
			case 1:
				msgs = append(msgs, InsertRule(ipTable(), "c", Exprs(nil).Drop(), fmt.Sprint("inserted ", random.IntN(100))))
			case 2:
				msgs = append(msgs, all[i].Deletion())
			}
		}
		return msgs
	}
	for step := range 300 {
		what := ""
		switch n := random.IntN(20); {
		case n < 12:
			what = "an own change"
			w.transact(some(&w.pool)...)
		case n < 16:
			what = "another's change"
			another.transact(some(&another.pool)...)
		case n == 16:
			what = "an own flush"
			w.transact(FlushChain(ipTable(), "c"), w.rule(7))
			w.same(what)
			w.refill()
		case n == 17:
			what = "a new chain of that name"
			w.transact(Object{Table: ipTable(), Chain: "c"}.Deletion())
			w.refill()
		case n == 18:
			what = "another's refill"
			another.refill()
		default:
			what = "two looks"
			w.same(what)
		}
		w.same(fmt.Sprintf("%s in step %d", what, step))
	}
}

// TestChangesAtOnce: transactions and looks of many goroutines, beside another process.
func TestChangesAtOnce(t *testing.T) {
	w := newCrowd(t)
	var all sync.WaitGroup
	for n := range 8 {
		all.Add(1)
		go func() {
			defer all.Done()
			for i := range 25 {
				err := w.pool.Do(w.ns, func(c *Conn) error {
					if err := c.Transact([]Message{w.rule(1000*(n+1) + i)}, nil); err != nil {
						return err
					}
					mine := Object{}
					err := UntilUnchanged(t.Context(), func() error {
						return c.Rules(ipTable(), "c", [][]byte{fmt.Appendf(nil, "rule %d\x00", 1000*(n+1)+i)}, func(r Rule) error {
							mine = r.Object(ipTable())
							return nil
						})
					})
					if err != nil {
						return err
					}
					if mine.Handle == 0 {
						return fmt.Errorf("a new rule of goroutine %d is not seen", n)
					}
					if i%2 == 0 {
						return nil
					}
					return c.Transact([]Message{mine.Deletion()}, nil)
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		}()
	}
	for range 20 {
		nft(t, w.ns, "add rule ip t c drop\n")
	}
	all.Wait()
	w.same("all changes")
	if n, want := len(w.look()), 2*longChain+8*13+20; n != want {
		t.Errorf("%d rules, want %d", n, want)
	}
}

// TestListsOfOtherNamespacesAreForgotten: a runtime does not remember all that it has seen.
func TestListsOfOtherNamespacesAreForgotten(t *testing.T) {
	var p Pool
	t.Cleanup(func() { expect.NoError(t, p.Close()) })
	for range mostKeepers + 2 {
		expect.NoError(t, p.Do(nettest.New(t), func(c *Conn) error { return nil }))
		if n := len(p.keepers); n > mostKeepers {
			t.Errorf("rules of %d namespaces are kept", n)
		}
	}
}

// Settle must not count as a change, which would make all lists old, and must leave no
// answer that the next request takes for its own.
func TestSettleChangesNothing(t *testing.T) {
	w := newCrowd(t)
	w.do(&w.pool, func(c *Conn) error {
		before, err := c.Generation()
		if err != nil {
			return err
		}
		if err := c.settle(); err != nil {
			return err
		}
		after, err := c.Generation()
		if after != before {
			t.Errorf("the generation is %d, was %d", after, before)
		}
		var buf [1 << 10]byte
		if n, _, err := unix.Recvfrom(c.fd, buf[:], unix.MSG_DONTWAIT); err != unix.EAGAIN {
			t.Errorf("an answer of %d bytes, %v", n, err)
		}
		return err
	})
	w.same("settle")
}
