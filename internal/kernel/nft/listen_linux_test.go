package nft

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/netns"
)

func listen(t *testing.T, ns *netns.Handle, buffer int) *Listener {
	t.Helper()
	l := expect.Value(Listen(ns, buffer))(t)
	t.Cleanup(func() { expect.NoError(t, l.Close()) })
	return l
}

const ruleset = `
table inet t {
	comment "mine"
	map ports { type inet_service : ipv4_addr; elements = { 8080 comment "c1" : 10.1.0.2 }; }
	chain own { ip saddr 10.1.0.2 drop comment "c1"; }
	chain base { type filter hook forward priority 0; jump own comment "c2"; }
}
`

// changedBy returns the names of those who have made changes until a program called "end"
// has made one: all that was changed before has arrived then too.
func changedBy(t *testing.T, ns *netns.Handle, l *Listener) []string {
	t.Helper()
	end := filepath.Join(t.TempDir(), "end")
	nettest.Shell(t, ns, "ln -s $(command -v nft) "+end+"; "+end+" 'add table inet end; add chain inet end c; delete table inet end'")
	ctx, cancel := context.WithTimeout(t.Context(), expect.Patience)
	defer cancel()
	names := []string{}
	for !slices.Contains(names, "end") {
		lost, err := l.Next(ctx, func(c Change) { names = append(names, c.Name) })
		expect.Must(t, !lost && err == nil, "lost %v, %v; heard %q", lost, err, names)
	}
	return names[:len(names)-1]
}

// TestListenHearsWhatTakesSomethingAway: deletions, replacements and new names, and no
// additions.
func TestListenHearsWhatTakesSomethingAway(t *testing.T) {
	for script, want := range map[string]bool{
		"delete element inet t ports { 8080 }":                                  true,
		"flush map inet t ports":                                                true,
		"flush chain inet t base":                                               true,
		"flush chain inet t base; delete chain inet t base":                     true,
		"flush ruleset":                                                         true,
		"rename chain inet t own other":                                         true,
		"flush chain inet t base; add rule inet t base jump own comment \"c2\"": true, // as it was
		"add element inet t ports { 81 : 10.1.0.3 }":                            false,
		"add rule inet t base accept; add chain inet t more; add table inet u":  false,
		"add set inet t s { type ipv4_addr; }":                                  false,
	} {
		ns := nettest.New(t)
		nft(t, ns, ruleset)
		l := listen(t, ns, 0)
		nft(t, ns, strings.ReplaceAll(script, "; ", "\n")+"\n")
		names := []string{}
		if want {
			names = []string{"nft"}
		}
		expect.Same(t, script, changedBy(t, ns, l), names)
	}
}

// TestListenLeavesOwnChangesOut: those that a Conn has made, of whichever process.
func TestListenLeavesOwnChangesOut(t *testing.T) {
	inConn(t, oneRule, func(ns *netns.Handle, c *Conn) {
		l := listen(t, ns, 0)
		generation := expect.Value(c.Generation())(t)
		expect.NoError(t, c.Transact(deletions(rulesOf(t, c, ipTable(), "c")), &generation))
		expect.Same(t, "changes", changedBy(t, ns, l), []string{})
	})
}

// TestListenSaysWhatItLost: more announcements than the buffer holds.
func TestListenSaysWhatItLost(t *testing.T) {
	ns := nettest.New(t)
	var b strings.Builder
	b.WriteString("add table ip t\nadd chain ip t c\n")
	for i := range 2000 {
		fmt.Fprintf(&b, "add rule ip t c drop comment \"rule %d\"\n", i)
	}
	nft(t, ns, b.String())
	small, large := listen(t, ns, 1), listen(t, ns, 16<<20)
	nft(t, ns, "flush ruleset\n")
	lost, err := large.Next(t.Context(), func(Change) {})
	expect.That(t, err == nil && !lost, "a large buffer: lost %v, %v", lost, err)
	lost, err = small.Next(t.Context(), func(Change) {})
	expect.That(t, err == nil && lost, "a small buffer: lost %v, %v", lost, err)
	nft(t, ns, oneRule) // it hears on
	expect.Succeeds(t, "Next", expect.Err(small.Next(t.Context(), func(Change) {})))
}

func TestListenEndsWithTheContext(t *testing.T) {
	l := listen(t, nettest.New(t), 0)
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error)
	go func() {
		_, err := l.Next(ctx, func(Change) {})
		done <- err
	}()
	cancel(why)
	expect.Is(t, <-done, why)
}

// FuzzReadHeard: whatever arrives, reading it ends without a panic.
func FuzzReadHeard(f *testing.F) {
	for typ := range uint16(40) {
		f.Add(typ, []byte{2, 0, 0, 0, 8, 0, 1, 0, 't', 0, 0, 0, 0xff, 0xff, 1, 0})
	}
	f.Fuzz(func(_ *testing.T, typ uint16, data []byte) {
		l := &Listener{}
		l.hear(links.Message{Header: syscall.NlMsghdr{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | typ}, Data: data})
	})
}
