package firewalld

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/firewalldtest"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/sandbox"
)

var address = netip.MustParseAddr("10.1.0.2")

func dial(t testing.TB, s *firewalldtest.Server) *Conn {
	t.Helper()
	c := expect.Value(Open(s.Address).Dial(t.Context(), nil))(t)
	t.Cleanup(c.Close)
	return c
}

// wantNothingOpen checks that no goroutine and no connection outlives the
// calls.
func wantNothingOpen(t *testing.T, s *firewalldtest.Server) {
	t.Helper()
	const patience = 20 * time.Second
	end := time.Now().Add(patience)
	for working() || connections(t, s) > 0 {
		if time.Now().After(end) {
			t.Fatalf("after %v there are %d connections, and goroutines:\n%s", patience, connections(t, s), stacks())
		}
		time.Sleep(time.Millisecond)
	}
}

// connections returns the number of connections to the bus, without the test's own and
// firewalld's.
func connections(t *testing.T, s *firewalldtest.Server) int {
	t.Helper()
	names := s.Names()
	n := -1
	for _, name := range names {
		if strings.HasPrefix(name, ":") {
			n++
		}
	}
	if slices.Contains(names, firewalldtest.BusName) {
		n--
	}
	return n
}

// working reports whether a connection's goroutine runs, apart from the test's
// own.
func working() bool { return strings.Count(stacks(), "inWorker(") > 1 }

func stacks() string {
	buf := make([]byte, 1<<20)
	return string(bytes.TrimSpace(buf[:runtime.Stack(buf, true)]))
}

func TestSourcesOfAZone(t *testing.T) {
	s := firewalldtest.Start(t, nettest.New(t))
	c := dial(t, s)
	v6 := netip.MustParseAddr("fd00::2")
	for _, addr := range []netip.Addr{address, v6} {
		for i, want := range []bool{true, false} {
			added, err := c.Add("trusted", addr)
			expect.That(t, added == want && err == nil, "Add %d of %v: %v, %v", i, addr, added, err)
		}
		has, err := c.Has("trusted", addr)
		expect.That(t, has && err == nil, "Has %v: %v, %v", addr, has, err)
		has, err = c.Has("internal", addr)
		expect.That(t, !has && err == nil, "another zone has %v: %v, %v", addr, has, err)
	}
	expect.Same(t, "trusted", fmt.Sprint(s.Sources("trusted")), "[10.1.0.2/32 fd00::2/128]")
	// In another zone it is another program's choice.
	expect.Succeeds(t, "Remove from another zone", c.Remove("internal", address))
	for range 2 {
		expect.Succeeds(t, "Remove", c.Remove("trusted", v6))
	}
	expect.Same(t, "trusted", fmt.Sprint(s.Sources("trusted")), "[10.1.0.2/32]")
}

func TestErrorsSayWhatToDo(t *testing.T) {
	s := firewalldtest.Start(t, nettest.New(t))
	s.AddSource("internal", "10.1.0.2/32")
	c := dial(t, s)
	_, conflict := c.Add("trusted", address)
	_, noZone := c.Has("pods", address)
	for _, tt := range []struct {
		err  error
		want string
	}{
		{conflict, `firewalld: addSource of 10.1.0.2/32 in zone "trusted": ZONE_CONFLICT: '10.1.0.2/32' already bound to a zone; ` +
			"it is in another zone: take it out of that one (firewall-cmd --get-zone-of-source=10.1.0.2/32), or set firewalldZone to it"},
		{noZone, `firewalld: querySource of 10.1.0.2/32 in zone "pods": INVALID_ZONE: pods; there is no such zone: ` +
			"make it (firewall-cmd --permanent --new-zone=pods, then --reload), or set firewalldZone to one that there is (firewall-cmd --get-zones)"},
	} {
		expect.That(t, tt.err != nil && tt.err.Error() == tt.want, "got  %v\nwant %s", tt.err, tt.want)
	}
	expect.Succeeds(t, "nothing is in a zone that there is not", c.Remove("pods", address))
}

func TestRunning(t *testing.T) {
	ns := nettest.New(t)
	s := firewalldtest.StartBus(t, ns)
	b := Open(s.Address)
	want := func(when string, want bool) {
		t.Helper()
		expect.Same(t, when, expect.Value(b.Running(t.Context(), ns))(t), want)
	}
	want("a bus alone", false)
	s.StartFirewalld()
	want("firewalld", true)
	s.StopFirewalld()
	want("firewalld has ended", false)
	c := expect.Value(b.Dial(t.Context(), ns))(t)
	expect.Is(t, expect.Err(c.Has("trusted", address)), ErrNotRunning)
	expect.Succeeds(t, "Remove without a firewalld", c.Remove("trusted", address))
	c.Close()
	wantNothingOpen(t, s)
	s.StopBus()
	want("the bus has ended", false)
}

// TestWhereThereIsNoBus there is no firewalld, as in the reference plugin, for
// any cause.
func TestWhereThereIsNoBus(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	expect.NoError(t, os.WriteFile(file, nil, 0o600))
	deaf := filepath.Join(dir, "deaf")
	l := expect.Value(net.Listen("unix", deaf))(t)
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	expect.NoError(t, l.Close())
	for name, addr := range map[string]string{
		"the system's": "", "none": "unix:path=" + filepath.Join(dir, "none"), "a file": "unix:path=" + file,
		"a socket that nobody listens on": "unix:path=" + deaf, "no address": "somewhere", "abstract": "unix:abstract=none-of-it",
		"below a file": "unix:path=" + filepath.Join(file, "bus"),
	} {
		running, err := Open(addr).Running(t.Context(), nil)
		expect.That(t, !running && err == nil, "%s: %v, %v", name, running, err)
		_, err = Open(addr).Dial(t.Context(), nil)
		expect.That(t, errors.Is(err, ErrNotRunning), "%s: %v", name, err)
	}
}

// TestABusThatRefusesTheUser counts as no firewalld. A bus that breaks the
// connection, for example because there are too many, cannot be asked.
func TestABusThatRefusesTheUser(t *testing.T) {
	for name, tt := range map[string]struct {
		says string
		none bool
	}{
		"refuses": {"REJECTED EXTERNAL\r\nREJECTED EXTERNAL\r\n", true}, "breaks off": {"", false},
		"breaks off later": {"REJECTED EXTERNAL\r\n", false}, "no bus": {"220 mail.example\r\n", true},
	} {
		path := filepath.Join(t.TempDir(), "bus")
		l, err := net.Listen("unix", path)
		expect.NoError(t, err)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = c.Write([]byte(tt.says))
				_ = c.(*net.UnixConn).CloseWrite()
				_, _ = io.Copy(io.Discard, c) // until the other one closes
				_ = c.Close()
			}
		}()
		running, err := Open("unix:path="+path).Running(t.Context(), nil)
		expect.That(t, !running && (err == nil) == tt.none, "%s: %v, %v", name, running, err)
		expect.Succeeds(t, "Close", l.Close())
		<-done
	}
}

// TestNobodyWaitsForABusThatHangs longer than the context lasts.
func TestNobodyWaitsForABusThatHangs(t *testing.T) {
	s := firewalldtest.Start(t, nettest.New(t))
	b := Open(s.Address)
	c := dial(t, s) // earlier
	enough := errors.New("enough")
	calls := map[string]func(ctx context.Context) error{
		"Running": func(ctx context.Context) error { _, err := b.Running(ctx, nil); return err },
		"Dial":    func(ctx context.Context) error { _, err := b.Dial(ctx, nil); return err },
	}
	ask := func(what string, call func(ctx context.Context) error) {
		t.Helper()
		ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, enough)
		defer cancel()
		start := time.Now()
		err := call(ctx)
		expect.That(t, errors.Is(err, enough), "%s: %v", what, err)
		took := time.Since(start)
		expect.That(t, took <= 10*time.Second, "%s took %v", what, took)
	}
	thaw := s.FreezeBus()
	for name, call := range calls {
		ask(name, call)
	}
	thaw()
	thaw = s.FreezeFirewalld()
	running, err := b.Running(t.Context(), nil)
	expect.That(t, running && err == nil, "the bus knows whether it runs: %v, %v", running, err)
	ask("Has", func(ctx context.Context) error {
		c, err := b.Dial(ctx, nil)
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Has("trusted", address)
		return err
	})
	thaw()
	has, err := c.Has("trusted", address)
	expect.That(t, !has && err == nil, "afterwards: %v, %v", has, err)
}

// TestManyAtOnceAreNotTooManyForTheBus, which closes connections of a user with
// more than 256.
func TestManyAtOnceAreNotTooManyForTheBus(t *testing.T) {
	s := firewalldtest.Start(t, nettest.New(t))
	b := Open(s.Address)
	var group sync.WaitGroup
	errs := make(chan error, 300)
	for i := range cap(errs) {
		group.Go(func() {
			errs <- b.once(t.Context(), netip.AddrFrom4([4]byte{10, 2, byte(i / 256), byte(i)}))
		})
	}
	group.Wait()
	close(errs)
	for err := range errs {
		expect.That(t, err == nil, "%v", err)
	}
	expect.Same(t, "addresses left", len(s.Sources("trusted")), 0)
	wantNothingOpen(t, s)
}

// once adds an address to the zone and removes it.
func (b *Bus) once(ctx context.Context, addr netip.Addr) error {
	c, err := b.Dial(ctx, nil)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Add("trusted", addr); err != nil {
		return err
	}
	return c.Remove("trusted", addr)
}

// TestFewDescriptorsAreNoSignOfNoFirewalld.
func TestFewDescriptorsAreNoSignOfNoFirewalld(t *testing.T) {
	for _, number := range []unix.Errno{unix.EMFILE, unix.ENFILE, unix.EAGAIN, unix.ENOMEM} {
		err := absent(&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", number)})
		expect.That(t, !errors.Is(err, ErrNotRunning), "%v is taken for no firewalld", number)
	}
	for _, number := range []unix.Errno{unix.ENOENT, unix.ECONNREFUSED, unix.EACCES, unix.ENOTSOCK} {
		err := absent(&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", number)})
		expect.That(t, errors.Is(err, ErrNotRunning), "%v is no sign of no firewalld", number)
	}
}

// TestAnAbstractAddressIsTheNamespaces: it exists in one network namespace. A
// file's address is visible everywhere.
func TestAnAbstractAddressIsTheNamespaces(t *testing.T) {
	ns := nettest.New(t)
	var l net.Listener
	expect.NoError(t, ns.Do(func() (err error) {
		l, err = net.Listen("unix", "@bus-of-a-test")
		return err
	}))
	came := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			err = c.Close()
		}
		came <- err
	}()
	b := Open("unix:abstract=bus-of-a-test")
	running, err := b.Running(t.Context(), nil)
	expect.That(t, !running && err == nil, "from another namespace: %v, %v", running, err)
	expect.Fails(t, "the bus broke off, and that is no error", expect.Err(b.Running(t.Context(), ns)))
	expect.Succeeds(t, "Join", errors.Join(<-came, l.Close()))
}

func TestMain(m *testing.M) { os.Exit(sandbox.Main(m)) }
