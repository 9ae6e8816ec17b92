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
			if added, err := c.Add("trusted", addr); added != want || err != nil {
				t.Errorf("Add %d of %v: %v, %v", i, addr, added, err)
			}
		}
		if has, err := c.Has("trusted", addr); !has || err != nil {
			t.Errorf("Has %v: %v, %v", addr, has, err)
		}
		if has, err := c.Has("internal", addr); has || err != nil {
			t.Errorf("another zone has %v: %v, %v", addr, has, err)
		}
	}
	expect.Same(t, "trusted", fmt.Sprint(s.Sources("trusted")), "[10.1.0.2/32 fd00::2/128]")
	// In another zone it is another program's choice.
	if err := c.Remove("internal", address); err != nil {
		t.Errorf("Remove from another zone: %v", err)
	}
	for range 2 {
		if err := c.Remove("trusted", v6); err != nil {
			t.Errorf("Remove: %v", err)
		}
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
		if tt.err == nil || tt.err.Error() != tt.want {
			t.Errorf("got  %v\nwant %s", tt.err, tt.want)
		}
	}
	if err := c.Remove("pods", address); err != nil {
		t.Errorf("nothing is in a zone that there is not: %v", err)
	}
}

func TestRunning(t *testing.T) {
	ns := nettest.New(t)
	s := firewalldtest.StartBus(t, ns)
	b := Open(s.Address)
	want := func(when string, want bool) {
		t.Helper()
		if got, err := b.Running(t.Context(), ns); got != want || err != nil {
			t.Errorf("%s: %v, %v", when, got, err)
		}
	}
	want("a bus alone", false)
	s.StartFirewalld()
	want("firewalld", true)
	s.StopFirewalld()
	want("firewalld has ended", false)
	c := expect.Value(b.Dial(t.Context(), ns))(t)
	expect.Is(t, expect.Err(c.Has("trusted", address)), ErrNotRunning)
	if err := c.Remove("trusted", address); err != nil {
		t.Errorf("Remove without a firewalld: %v", err)
	}
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
		if running, err := Open(addr).Running(t.Context(), nil); running || err != nil {
			t.Errorf("%s: %v, %v", name, running, err)
		}
		if _, err := Open(addr).Dial(t.Context(), nil); !errors.Is(err, ErrNotRunning) {
			t.Errorf("%s: %v", name, err)
		}
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
		if running || (err == nil) != tt.none {
			t.Errorf("%s: %v, %v", name, running, err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
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
		if err := call(ctx); !errors.Is(err, enough) {
			t.Errorf("%s: %v", what, err)
		}
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("%s took %v", what, took)
		}
	}
	thaw := s.FreezeBus()
	for name, call := range calls {
		ask(name, call)
	}
	thaw()
	thaw = s.FreezeFirewalld()
	if running, err := b.Running(t.Context(), nil); !running || err != nil {
		t.Errorf("the bus knows whether it runs: %v, %v", running, err)
	}
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
	if has, err := c.Has("trusted", address); has || err != nil {
		t.Errorf("afterwards: %v, %v", has, err)
	}
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
		if err != nil {
			t.Error(err)
		}
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
		if err := absent(&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", number)}); errors.Is(err, ErrNotRunning) {
			t.Errorf("%v is taken for no firewalld", number)
		}
	}
	for _, number := range []unix.Errno{unix.ENOENT, unix.ECONNREFUSED, unix.EACCES, unix.ENOTSOCK} {
		if err := absent(&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", number)}); !errors.Is(err, ErrNotRunning) {
			t.Errorf("%v is no sign of no firewalld", number)
		}
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
	if running, err := b.Running(t.Context(), nil); running || err != nil {
		t.Errorf("from another namespace: %v, %v", running, err)
	}
	expect.Fails(t, "the bus broke off, and that is no error", expect.Err(b.Running(t.Context(), ns)))
	if err := errors.Join(<-came, l.Close()); err != nil {
		t.Error(err)
	}
}
