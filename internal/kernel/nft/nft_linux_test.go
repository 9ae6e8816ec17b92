package nft

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/sandbox"
	"github.com/embedcni/cni/netns"
)

func TestMain(m *testing.M) { os.Exit(sandbox.Main(m)) }

func nft(t *testing.T, ns *netns.Handle, script string) {
	t.Helper()
	nettest.Shell(t, ns, "nft -f - <<'EOF'\n"+script+"EOF")
}

func rulesOf(t *testing.T, c *Conn, table Table, chain string) (all []Object) {
	t.Helper()
	expect.NoError(t, c.Rules(table, chain, nil, func(r Rule) error {
		all = append(all, r.Object(table))
		return nil
	}))
	return all
}

// inConn runs fn with a Conn in a new namespace.
func deletions(objects []Object) (msgs []Message) {
	for _, o := range objects {
		msgs = append(msgs, o.Deletion())
	}
	return msgs
}

func inConn(t *testing.T, setup string, fn func(ns *netns.Handle, c *Conn)) {
	t.Helper()
	ns := nettest.New(t)
	nft(t, ns, setup)
	expect.NoError(t, Sockets{NS: ns}.Do(t.Context(), func(c *Conn) error {
		fn(ns, c)
		return nil
	}))
}

const oneRule = "add table ip t; add chain ip t c; add rule ip t c drop comment c1\n"

func ipTable() Table { return Table{FamilyIPv4, "t"} }

// TestDeleteOfAnOldGeneration: the kernel itself refuses to delete from changed
// rules.
func TestDeleteOfAnOldGeneration(t *testing.T) {
	inConn(t, oneRule, func(ns *netns.Handle, c *Conn) {
		generation := expect.Value(c.Generation())(t)
		objects := rulesOf(t, c, ipTable(), "c")
		expect.Must(t, len(objects) == 1 && objects[0].Comment == "c1", "listed %v", objects)
		nft(t, ns, "add table ip whatever\n")
		expect.Is(t, c.Transact(deletions(objects), &generation), ErrChanged)
		generation++
		expect.Succeeds(t, "Transact", c.Transact(deletions(objects), &generation))
		expect.Empty(t, "left", rulesOf(t, c, ipTable(), "c"))
	})
}

// TestTheErrorNamesTheObject: a transaction is refused as a whole, and the
// error names the message.
func TestTheErrorNamesTheObject(t *testing.T) {
	inConn(t, oneRule, func(_ *netns.Handle, c *Conn) {
		err := c.Transact([]Message{
			NewRule(ipTable(), "c", Exprs(nil).Accept(), "c2"),
			NewRule(ipTable(), "no such chain", Exprs(nil).Accept(), "c3"),
		}, nil)
		want := `rule ip t no such chain comment "c3": no such file or directory`
		expect.That(t, err != nil && err.Error() == want && errors.Is(err, unix.ENOENT), "got %v, want %s", err, want)
		objects := rulesOf(t, c, ipTable(), "c")
		expect.That(t, len(objects) == 1, "rules %v", objects)
	})
}

func TestExist(t *testing.T) {
	inConn(t, oneRule, func(_ *netns.Handle, c *Conn) {
		exist, err := c.Exist(FamilyIPv4, Chain{"t", ""}, Chain{"t", strings.Repeat("x", unix.NFT_NAME_MAXLEN)}, Chain{"t", "c"}, Chain{"t", "d"}, Chain{"u", ""})
		want := []bool{true, false, true, false, false}
		expect.That(t, err == nil && slices.Equal(exist, want), "got %v, %v, want %v", exist, err, want)
	})
}

// TestRulesAreReadAsMade: the comparisons and jumps of a listed rule can be read. Rules that
// contain none of the words are left out.
func TestRulesAreReadAsMade(t *testing.T) {
	made := map[string]Exprs{
		"c1": Exprs(nil).Source(FamilyIPv4, Reg(0)).Equal([]byte{10, 1, 0, 2}).Jump("d"),
		"c2": Exprs(nil).Drop(),
		"c3": Exprs(nil).Meta(unix.NFT_META_L4PROTO, Reg(0)).Compare(Reg(0), unix.NFT_CMP_NEQ, []byte{6}).Accept(),
	}
	inConn(t, "add table ip t; add chain ip t c; add chain ip t d\n", func(_ *netns.Handle, c *Conn) {
		var msgs []Message
		for comment, e := range made {
			msgs = append(msgs, NewRule(ipTable(), "c", e, comment))
		}
		expect.NoError(t, c.Transact(msgs, nil))
		read := func(chain string, containing ...string) (all []string) {
			t.Helper()
			var words [][]byte
			for _, w := range containing {
				words = append(words, []byte(w))
			}
			expect.NoError(t, c.Rules(ipTable(), chain, words, func(r Rule) error {
				want := Rule{Exprs: made[r.Comment]}
				expect.Same(t, r.Comment, fmt.Sprint(valuesOf(r), r.Jump()), fmt.Sprint(valuesOf(want), want.Jump()))
				all = append(all, r.Comment)
				return nil
			}))
			slices.Sort(all)
			return all
		}
		expect.Same(t, "rules", read(""), []string{"c1", "c2", "c3"})
		expect.Same(t, "rules that contain c3", read("c", "c3"), []string{"c3"})
	})
}

// valuesOf returns the values that the rule compares with and loads, in order.
func valuesOf(r Rule) (values [][]byte) {
	for _, x := range r.Exprs.List() {
		if v := x.Value(); v != nil {
			values = append(values, v)
		}
	}
	return values
}

// TestInterruptedAndStoppedLists: a change during the reading of a list is
// reported, and a Conn with an unread rest is not reused.
func TestInterruptedAndStoppedLists(t *testing.T) {
	inConn(t, "add table ip t; add chain ip t c\n", func(ns *netns.Handle, c *Conn) {
		var msgs []Message
		for i := range 2000 {
			msgs = append(msgs, NewRule(ipTable(), "c", Exprs(nil).Accept(), fmt.Sprint("comment ", i)))
		}
		expect.NoError(t, c.Transact(msgs, nil))
		changed := false
		err := c.Rules(ipTable(), "c", nil, func(Rule) error {
			if !changed {
				changed = true
				nft(t, ns, "insert rule ip t c drop\n")
			}
			return nil
		})
		expect.Is(t, err, ErrChanged)
		p := poolThatKeeps(ns)
		n, stop := 0, errors.New("stop")
		err = Sockets{p, ns}.Do(t.Context(), func(c *Conn) error {
			return c.Rules(ipTable(), "c", nil, func(Rule) error { n++; return stop })
		})
		expect.That(t, errors.Is(err, stop) && n == 1, "stopped: %d rules, %v", n, err)
		err = Sockets{p, ns}.Do(t.Context(), func(c *Conn) error {
			_, err := c.Generation() // no rest of the list is in the way
			return err
		})
		left := len(p.idle[ns.ID()].conns)
		expect.That(t, err == nil && left == 1, "after the stop: %d idle sockets, %v", left, err)
		p.expire(ns.ID())
	})
}

// poolThatKeeps returns a pool whose sockets do not expire.
func poolThatKeeps(ns *netns.Handle) *Pool {
	return &Pool{idle: map[netns.ID]*idle{ns.ID(): {timer: time.NewTimer(time.Hour)}}}
}

// openIn returns the number of idle sockets.
func (p *Pool) openIn(ns *netns.Handle) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if in := p.idle[ns.ID()]; in != nil {
		return len(in.conns)
	}
	return 0
}

// TestSocketsAreClosed: sockets are kept for a moment and then closed.
func TestSocketsAreClosed(t *testing.T) {
	ns := nettest.New(t)
	before, err := audit.Snapshot(t.Context(), audit.Options{})
	expect.NoError(t, err)
	many := func(p *Pool) {
		t.Helper()
		errs := make([]error, 2*mostIdle)
		var wg, all sync.WaitGroup
		all.Add(len(errs))
		for i := range errs {
			wg.Go(func() {
				errs[i] = Sockets{p, ns}.Do(t.Context(), func(c *Conn) error {
					all.Done()
					all.Wait() // so that each has one of its own
					_, err := c.Generation()
					return err
				})
			})
		}
		wg.Wait()
		expect.NoError(t, errors.Join(errs...))
	}
	sockets := poolThatKeeps(ns)
	many(sockets)
	n := sockets.openIn(ns)
	expect.That(t, n >= 1 && n <= mostIdle, "%d sockets are kept", n)
	sockets.expire(ns.ID())
	sockets = &Pool{}
	many(sockets)
	expect.Eventually(t, "the end of all sockets", func() bool { return sockets.openIn(ns) == 0 })
	after, err := audit.Snapshot(t.Context(), audit.Options{})
	for deadline := time.Now().Add(expect.Patience); err == nil && !slices.Equal(before, after) && time.Now().Before(deadline); {
		after, err = audit.Snapshot(t.Context(), audit.Options{})
	}
	expect.NoError(t, err)
	left, gone := audit.Diff(before, after)
	expect.Unchanged(t, "left", left, gone)
}

// TestSocketsStayWhileOneIsUsed: to close one could make everybody wait who changes rules.
func TestSocketsStayWhileOneIsUsed(t *testing.T) {
	busy, quiet := nettest.New(t), nettest.New(t)
	synctest.Test(t, func(t *testing.T) {
		p := &Pool{}
		twoAtOnce := func(ns *netns.Handle) {
			t.Helper()
			expect.NoError(t, Sockets{p, ns}.Do(t.Context(), func(*Conn) error {
				return Sockets{p, ns}.Do(t.Context(), func(*Conn) error { return nil })
			}))
			expect.Same(t, "idle sockets", p.openIn(ns), 2)
		}
		twoAtOnce(busy)
		twoAtOnce(quiet)
		for range 3 {
			time.Sleep(linger * 3 / 4)
			synctest.Wait()
			expect.Same(t, "sockets that stay", p.openIn(busy), 2)
			expect.NoError(t, Sockets{p, busy}.Do(t.Context(), func(*Conn) error { return nil }))
		}
		expect.Same(t, "sockets where none is used", p.openIn(quiet), 0)
		time.Sleep(linger * 5 / 4)
		synctest.Wait()
		expect.Same(t, "namespaces", len(p.idle), 0)
	})
}

func TestComments(t *testing.T) {
	for comment, want := range map[string]string{
		"": "", "c1": "c1", strings.Repeat("x", LongestComment+1): strings.Repeat("x", LongestComment),
	} {
		expect.Same(t, comment+": read", readComment(userComment(comment)), want)
	}
	for data, want := range map[string]string{
		"":                               "",
		"\x00\x03c1\x00":                 "c1",
		"\x05\x02xy\x00\x03c1\x00":       "c1",
		"\x00\x01\x00":                   "",
		"\x00\x00":                       "",
		"\x00":                           "",
		"\x00\xffc1\x00":                 "",
		"\x05\x02xy\x00\x09c1\x00":       "",
		"\x00\x06c1 c1\x00\x00\x02x\x00": "c1 c1",
	} {
		expect.Same(t, data, readComment([]byte(data)), want)
	}
}
