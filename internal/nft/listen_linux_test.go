package nft

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/notify"
	"github.com/embedcni/cni/netns"
)

func listen(t *testing.T, ns *netns.Handle, buffer int) *Listener {
	t.Helper()
	l, err := Listen(ns, buffer)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// line renders an announcement.
func line(h Announcement) string {
	var words []string
	add := func(format string, args ...any) { words = append(words, fmt.Sprintf(format, args...)) }
	if h.End != nil {
		return "end"
	}
	if h.Added {
		add("added")
	}
	add("%v", h.Table)
	if h.Chain != "" {
		add("chain %s", h.Chain)
	}
	if h.Set != "" {
		add("set %s", h.Set)
	}
	if h.Rule != nil {
		add("rule %q jump %q", h.Rule.Comment, h.Rule.Jump())
	}
	for _, e := range h.Elements {
		add("element %x %q", e.Key, e.Comment)
	}
	return strings.Join(words, " ")
}

// transactions returns the announcements of n transactions.
func transactions(t *testing.T, l *Listener, n int) (lines []string, ends []Transaction, ports []uint32) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), expect.Patience)
	defer cancel()
	for len(ends) < n {
		lost, err := l.Next(ctx, func(h Announcement) {
			if h.End != nil {
				ends = append(ends, *h.End)
				return
			}
			lines, ports = append(lines, line(h)), append(ports, h.Port)
		})
		if lost || err != nil {
			t.Fatalf("lost %v, %v; heard %q", lost, err, lines)
		}
	}
	return lines, ends, ports
}

const ruleset = `
table inet t {
	comment "mine"
	map ports { type inet_service : ipv4_addr; elements = { 8080 comment "c1" : 10.1.0.2 }; }
	chain own { ip saddr 10.1.0.2 drop comment "c1"; }
	chain base { type filter hook forward priority 0; jump own comment "c2"; }
}
`

// TestListenHearsWhatIsDeleted: each announcement has what is needed to find the
// container that it is about, and comes before the end of its transaction.
func TestListenHearsWhatIsDeleted(t *testing.T) {
	for script, want := range map[string][]string{
		"delete element inet t ports { 8080 }": {`inet t set ports element 1f90 "c1"`},
		"flush chain inet t base":              {`inet t chain base rule "c2" jump "own"`},
		"flush chain inet t base; delete chain inet t base": {
			`inet t chain base`, `inet t chain base rule "c2" jump "own"`},
		"flush ruleset": {
			`inet t`, `inet t chain base`, `inet t chain base rule "c2" jump "own"`, `inet t chain own`, `inet t chain own rule "c1" jump ""`,
			`inet t set ports`},
		"flush chain inet t base; add rule inet t base accept comment c3": {
			`added inet t chain base rule "c3" jump ""`, `inet t chain base rule "c2" jump "own"`},
		"add element inet t ports { 81 : 10.1.0.3 }": nil,
	} {
		ns := nettest.New(t)
		nft(t, ns, ruleset)
		l := listen(t, ns, 0)
		nft(t, ns, strings.ReplaceAll(script, "; ", "\n")+"\n")
		lines, ends, _ := transactions(t, l, 1)
		slices.Sort(lines)
		expect.Same(t, script, lines, want)
		if ends[0].Name != "nft" || ends[0].Thread == 0 || ends[0].Generation == 0 {
			t.Errorf("%s: the end is %+v", script, ends[0])
		}
	}
}

// TestListenSaysWhoAsked: transactions of one's own are known by the port, and by the
// process where PID namespaces are the first.
func TestListenSaysWhoAsked(t *testing.T) {
	inConn(t, oneRule, func(ns *netns.Handle, c *Conn) {
		l := listen(t, ns, 0)
		if err := c.Transact([]Message{FlushChain(ipTable(), "c")}, nil); err != nil {
			t.Fatal(err)
		}
		name, err := unix.Getsockname(c.fd)
		if err != nil {
			t.Fatal(err)
		}
		_, ends, ports := transactions(t, l, 1)
		if want := name.(*unix.SockaddrNetlink).Pid; !slices.Equal(ports, []uint32{want}) {
			t.Errorf("ports %d, want %d", ports, want)
		}
		comm, err := os.ReadFile("/proc/self/comm")
		if err != nil {
			t.Fatal(err)
		}
		if got, want := ends[0].Name, strings.TrimSpace(string(comm)); got != want {
			t.Errorf("changed by %q, want %q", got, want)
		}
		generation, err := c.Generation()
		if err != nil || ends[0].Generation != generation {
			t.Errorf("generation %d, %v; the kernel's is %d", ends[0].Generation, err, generation)
		}
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
	lines, _, _ := transactions(t, large, 1)
	if len(lines) != 2002 {
		t.Errorf("a large buffer: heard of %d objects", len(lines))
	}
	lost, err := small.Next(t.Context(), func(Announcement) {})
	if err != nil || !lost {
		t.Errorf("a small buffer: lost %v, %v", lost, err)
	}
	nft(t, ns, oneRule) // it hears on
	if _, err := small.Next(t.Context(), func(Announcement) {}); err != nil {
		t.Error(err)
	}
}

func TestListenEndsWithTheContext(t *testing.T) {
	l := listen(t, nettest.New(t), 0)
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error)
	go func() {
		_, err := l.Next(ctx, func(Announcement) {})
		done <- err
	}()
	cancel(why)
	if err := <-done; !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
}

// FuzzReadHeard: whatever arrives, reading it ends without a panic.
func FuzzReadHeard(f *testing.F) {
	for typ := range uint16(40) {
		f.Add(typ, []byte{2, 0, 0, 0, 8, 0, 1, 0, 't', 0, 0, 0, 0xff, 0xff, 1, 0})
	}
	f.Fuzz(func(_ *testing.T, typ uint16, data []byte) {
		h, ok := readAnnouncement(notify.Message{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | typ, Body: data})
		if ok && h.Rule != nil {
			h.Rule.Values()
			h.Rule.Jump()
		}
	})
}
