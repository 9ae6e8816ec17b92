// Package firewalldtest starts a firewalld for a test: Debian's, with its own
// D-Bus and configuration, in a network namespace that the test chooses.
package firewalldtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/iptables"
	"github.com/embedcni/cni/netns"
)

const (
	BusName   = "org.fedoraproject.FirewallD1"
	busPath   = "/org/fedoraproject/FirewallD1"
	zoneCalls = BusName + ".zone."
)

// Server is a D-Bus, with a firewalld unless that was stopped.
type Server struct {
	// Address is the bus's address, for DBUS_SYSTEM_BUS_ADDRESS.
	Address string

	t         testing.TB
	ns        *netns.Handle
	dir       string
	bus       *process
	firewalld *process
	conn      *dbus.Conn
}

// StartBus starts a D-Bus without a firewalld. It ends with the test.
func StartBus(t testing.TB, ns *netns.Handle) *Server {
	t.Helper()
	dir, err := os.MkdirTemp("", "bus") // a test's own directory has too long a path for a socket
	expect.NoError(t, err)
	t.Cleanup(func() { expect.NoError(t, os.RemoveAll(dir)) })
	s := &Server{t: t, ns: ns, dir: dir, Address: "unix:path=" + filepath.Join(dir, "bus")}
	// A session's bus has no access control.
	s.bus = start(t, ns, exec.Command(tool(t, "dbus-daemon"), "--session", "--address="+s.Address, "--nofork", "--nopidfile"))
	expect.Eventually(t, "a D-Bus that listens", func() (listens bool) {
		s.conn, err = dbus.Connect(s.Address, dbus.WithAuth(dbus.AuthExternal(fmt.Sprint(os.Geteuid()))))
		return err == nil
	})
	t.Cleanup(func() { _ = s.conn.Close() }) // the bus may have closed it
	return s
}

// Start starts a D-Bus and a firewalld in the namespace. Both end with the
// test. The default zone is "public". firewalld rejects a forwarded packet
// unless its source or destination is in a zone that accepts it.
func Start(t testing.TB, ns *netns.Handle) *Server {
	t.Helper()
	s := StartBus(t, ns)
	s.StartFirewalld()
	return s
}

// StartFirewalld starts a firewalld, and returns when it answers.
func (s *Server) StartFirewalld() {
	s.t.Helper()
	conf := filepath.Join(s.dir, "conf")
	for _, dir := range []string{"zones", "services", "icmptypes", "ipsets", "helpers", "policies"} {
		expect.NoError(s.t, os.MkdirAll(filepath.Join(conf, dir), 0o750))
	}
	const settings = "DefaultZone=public\nFirewallBackend=nftables\nCleanupModulesOnExit=no\n"
	expect.NoError(s.t, os.WriteFile(filepath.Join(conf, "firewalld.conf"), []byte(settings), 0o644))
	cmd := exec.Command(tool(s.t, "firewalld"), "--nofork", "--nopid", "--system-config", conf, "--log-target", "console")
	cmd.Env = append(os.Environ(), "DBUS_SYSTEM_BUS_ADDRESS="+s.Address)
	s.firewalld = start(s.t, s.ns, cmd)
	s.awaitOwner(true)
	s.mustCall(BusName+".getDefaultZone", nil)
}

// awaitOwner waits until firewalld has taken its name, or has released it. firewalld is
// written in Python, and takes a second to start on an idle machine.
func (s *Server) awaitOwner(owned bool) {
	s.t.Helper()
	expect.Eventually(s.t, fmt.Sprintf("a bus with firewalld: %t", owned), func() (has bool) {
		expect.NoError(s.t, s.conn.BusObject().Call("org.freedesktop.DBus.NameHasOwner", 0, BusName).Store(&has))
		return has == owned
	})
}

// StopFirewalld stops firewalld with SIGTERM, as a system's shutdown does.
func (s *Server) StopFirewalld() {
	s.t.Helper()
	s.firewalld.stop(s.t, unix.SIGTERM)
	s.awaitOwner(false)
}

// StopBus ends the bus, and firewalld with it.
func (s *Server) StopBus() {
	s.t.Helper()
	s.bus.stop(s.t, unix.SIGTERM)
	if s.firewalld != nil {
		s.firewalld.stop(s.t, unix.SIGTERM)
	}
}

// FreezeBus and FreezeFirewalld make them hang until thaw is called.
func (s *Server) FreezeBus() (thaw func())       { return s.bus.freeze(s.t) }
func (s *Server) FreezeFirewalld() (thaw func()) { return s.firewalld.freeze(s.t) }

// Reload is firewall-cmd --reload.
func (s *Server) Reload() {
	s.t.Helper()
	s.mustCall(BusName+".reload", nil)
}

// AddSource is firewall-cmd --add-source, as an administrator uses it.
func (s *Server) AddSource(zone, source string) {
	s.t.Helper()
	s.mustCall(zoneCalls+"addSource", nil, zone, source)
}

// RemoveSource is firewall-cmd --remove-source.
func (s *Server) RemoveSource(zone, source string) {
	s.t.Helper()
	s.mustCall(zoneCalls+"removeSource", nil, zone, source)
}

// Sources returns the sources in a zone, sorted.
func (s *Server) Sources(zone string) []string {
	s.t.Helper()
	var sources []string
	s.mustCall(zoneCalls+"getSources", &sources, zone)
	slices.Sort(sources)
	return sources
}

func (s *Server) mustCall(method string, result any, args ...any) {
	s.t.Helper()
	call := s.conn.Object(BusName, busPath).Call(method, 0, args...)
	err := call.Err
	if err == nil && result != nil {
		err = call.Store(result)
	}
	if err != nil {
		s.t.Fatalf("%s%v: %v", method, args, err)
	}
}

// Names returns the names on the bus.
func (s *Server) Names() (names []string) {
	s.t.Helper()
	expect.NoError(s.t, s.conn.BusObject().Call("org.freedesktop.DBus.ListNames", 0).Store(&names))
	return names
}

// tool returns the path of a program that "make deps" installs. Without it the
// test fails instead of being skipped silently.
func tool(t testing.TB, name string) string {
	t.Helper()
	path, err := iptables.LookPath(name)
	if err != nil {
		t.Fatalf("%v: install it (make deps does)", err)
	}
	return path
}

// process is a process that the test has started. Its output is the test's.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{}
}

// start starts a process in the namespace. It ends with the test at the latest.
func start(t testing.TB, ns *netns.Handle, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{cmd: cmd, ended: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	expect.NoError(t, ns.Do(cmd.Start))
	go func() {
		_ = cmd.Wait() // it is ended by signals
		close(p.ended)
	}()
	t.Cleanup(func() { p.stop(t, unix.SIGKILL) })
	return p
}

// stop ends the process, and waits until it has ended.
func (p *process) stop(t testing.TB, signal syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Error(err)
	}
	expect.Await(t, fmt.Sprint(p.cmd.Path, " to end after ", signal), p.ended)
}

// freeze stops the process, and returns when all its threads are stopped.
func (p *process) freeze(t testing.TB) (thaw func()) {
	t.Helper()
	pid := p.cmd.Process.Pid
	expect.NoError(t, unix.Kill(pid, unix.SIGSTOP))
	err := error(unix.EINTR)
	for errors.Is(err, unix.EINTR) {
		err = unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil)
	}
	expect.NoError(t, err)
	thaw = sync.OnceFunc(func() {
		if err := unix.Kill(pid, unix.SIGCONT); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(thaw)
	return thaw
}
