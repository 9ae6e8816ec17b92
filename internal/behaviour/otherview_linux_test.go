package behaviour_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/reconcile"
)

// daemonVerb is a daemon whose mounts nobody else sees: it makes a namespace, attaches a
// container in it, waits at its gate, and then examines and removes the container.
const daemonVerb = "DAEMON"

func gateOf(stateDir, id string) string { return filepath.Join(filepath.Dir(stateDir), "gate-"+id) }

func daemonMain(ctx context.Context, r *cni.Runtime, j testhost.Job) error {
	ns, err := netns.Create(j.NetNS)
	if err != nil {
		return err
	}
	if err := ns.Close(); err != nil {
		return err
	}
	if _, err := r.Setup(ctx, j.ID, j.NetNS); err != nil {
		return err
	}
	gate, err := os.Open(gateOf(j.StateDir, j.ID))
	if err != nil {
		return err
	}
	if _, err := io.ReadAll(gate); err != nil {
		return err
	}
	if err := errors.Join(gate.Close(), hasInterface(j.NetNS)); err != nil {
		return err
	}
	return r.Remove(ctx, j.ID, j.NetNS)
}

// restartVerb begins the verb of a daemon that follows one which was killed. It is process
// 1 of its PID namespace.
const restartVerb = "RESTART "

func restartMain(ctx context.Context, r *cni.Runtime, j testhost.Job) error {
	before := j
	before.Verb, before.NewProc, before.NetNS = daemonVerb, false, filepath.Join(filepath.Dir(j.NetNS), j.ID)
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args = os.Args // the program's name is the owner
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(encoded(before)), os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	gate, err := os.OpenFile(gateOf(j.StateDir, j.ID), os.O_WRONLY, 0) // until it has attached
	if err == nil {
		err = cmd.Process.Kill()
	}
	_ = cmd.Wait() // it was killed
	if err != nil {
		return err
	}
	defer gate.Close()
	if j.Verb == restartVerb+"ADD" {
		_, err = r.Setup(ctx, j.ID, j.NetNS)
		return err
	}
	report, err := r.Recover(ctx)
	if err == nil {
		err = fmt.Errorf("%v", *report)
	}
	return err
}

// hasInterface returns an error unless the namespace at path has the container's
// interface, or is that of a container of lo alone.
func hasInterface(path string) error {
	ns, err := netns.Open(path)
	if err != nil {
		return err
	}
	err = ns.Do(func() error {
		if lo, err := net.InterfaceByName("lo"); err == nil && lo.Flags&net.FlagUp != 0 {
			return nil // by the plugin loopback
		}
		_, err := net.InterfaceByName("eth0")
		return err
	})
	return errors.Join(err, ns.Close())
}

// daemon is a daemon with one container.
type daemon struct {
	gate *os.File
	done <-chan string
}

// daemon starts a daemon in a mount namespace of its own, and waits until its container
// is attached.
func (h *realHost) daemon(j testhost.Job) *daemon {
	h.T.Helper()
	j.Verb, j.ID, j.NetNS = daemonVerb, "c1", h.Path("netns", "c1")
	gate := gateOf(h.Path("state"), j.ID)
	expect.NoError(h.T, syscall.Mkfifo(gate, 0o600))
	d := &daemon{}
	_, d.done = h.start(j, unix.CLONE_NEWNS)
	opened := make(chan *os.File, 1)
	go func() {
		f, err := os.OpenFile(gate, os.O_WRONLY, 0)
		expect.That(h.T, err == nil, "%v", err)
		opened <- f
	}()
	select {
	case d.gate = <-opened:
	case said := <-d.done:
		h.T.Fatalf("the daemon: %s", said)
	}
	return d
}

// start starts a job with the reference plugins, or built-in ones, in new namespaces. The
// channel gets its output.
func (h *realHost) start(j testhost.Job, flags uintptr) (*os.Process, <-chan string) {
	h.T.Helper()
	if !j.InProcess {
		j.PluginDir = testhost.ReferencePlugins(h.T)
	}
	return h.ProcessFor(j, &syscall.SysProcAttr{Cloneflags: flags})
}

// wantWhole checks that the container has its interface and can be removed.
func (h *realHost) wantWhole(d *daemon) {
	h.T.Helper()
	expect.NoError(h.T, d.gate.Close())
	expect.Same(h.T, "the daemon says", expect.Await(h.T, "the daemon", d.done), "")
}

// unseenCase is a network whose containers no path leads to.
type unseenCase struct {
	name    string
	network testhost.Case
	// hostEnd: an end of the interface is on the host, and shows that the container lives.
	hostEnd bool
}

func unseenCases() []unseenCase {
	return []unseenCase{
		{"bridge", testhost.Case{Plugins: []string{testhost.BridgeConf(`"ipMasq": true, ` + testhost.HostLocal(testhost.V4Range))}}, true},
		{"ptp", testhost.Case{Plugins: []string{testhost.PtpConf(testhost.HostLocal(testhost.V4Range))}}, true},
		{"macvlan", testhost.Macvlan(), false},
		{"lo", testhost.Case{Plugins: []string{`{"type": "loopback"}`}}, false},
	}
}

// unseen runs a test on a host where a daemon with mounts of its own has attached c1. r is
// a runtime of the same owner.
func unseen(t *testing.T, test func(t *testing.T, h *realHost, c unseenCase, j testhost.Job, r *cni.Runtime)) {
	for _, c := range unseenCases() {
		for _, inProcess := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, built in %v", c.name, inProcess), func(t *testing.T) {
				h := newRealHost(t)
				if c.network.Prepare != nil {
					c.network.Prepare(h.RealHost)
				}
				conf := c.network.Conf("podnet", "1.0.0", h.Path("ipam"))
				r := h.Real(cni.WithConfListBytes(conf))
				if inProcess {
					r = h.Runtime(cni.WithConfListBytes(conf), cni.WithBuiltinPlugins())
				}
				test(t, h, c, testhost.Job{Conf: conf, InProcess: inProcess}, r)
			})
		}
	}
}

// TestFault_F63_AContainerOfAnotherMountNamespaceLives: neither its path nor its pin leads
// to it, and no process is in it. No call takes it for dead.
func TestFault_F63_AContainerOfAnotherMountNamespaceLives(t *testing.T) {
	calls, harmed := 0, 0
	unseen(t, func(t *testing.T, h *realHost, c unseenCase, j testhost.Job, r *cni.Runtime) {
		d := h.daemon(j)
		for what, call := range map[string]func() error{
			"Recover": func() error {
				report, err := r.Recover(t.Context())
				expect.NoError(t, err, report.Err())
				expect.Same(t, "removed", report.Removed, nil)
				if len(report.Kept) == 0 && len(report.Skipped) == 0 && c.name != "macvlan" { // which a reference leads to
					t.Errorf("the report does not say that c1 was not examined: %v", report)
				}
				return nil
			},
			"Setup": func() error {
				_, err := r.Setup(t.Context(), "c1", h.Container("another"))
				if err == nil {
					return errors.New("c1 was attached again")
				}
				if c.hostEnd {
					expect.Is(t, err, cni.ErrAlreadyAttached)
				}
				return nil
			},
			"GC": func() error {
				return expect.Reported(r.GC(t.Context(), cni.GCOptions{Keep: []string{"c1"}}))
			},
			"Reconcile": func() error { return errOf(reconcile.Run(t.Context(), r, nil, reconcile.Options{})) },
			"Health": func() error {
				report := expect.Value(r.Health(t.Context(), cni.HealthOptions{}))(t)
				for _, one := range report {
					expect.Same(t, fmt.Sprintf("%s is gone: %v", one.ContainerID, one.Reason), one.State == cni.StateGone, false)
				}
				return nil
			},
			"Setup of another": func() error { // and the search for abandoned containers
				_, err := r.Setup(t.Context(), "c2", h.Container("c2"))
				return errors.Join(err, r.Remove(t.Context(), "c2", ""))
			},
		} {
			calls++
			before := testhost.Recorded(t, r)
			err, after := call(), testhost.Recorded(t, r)
			if err != nil || strings.Join(after, " ") != strings.Join(before, " ") {
				harmed++
				t.Errorf("%s: %v; on record are %v, were %v", what, err, after, before)
				return
			}
		}
		h.wantWhole(d)
	})
	t.Logf("F63: %d of %d calls harmed a container of another mount namespace", harmed, calls)
}

// TestFault_F63_AContainerThatNoProcessHereShowsLives, although Recover runs where neither
// its mounts nor its processes are seen.
func TestFault_F63_AContainerThatNoProcessHereShowsLives(t *testing.T) {
	unseen(t, func(t *testing.T, h *realHost, c unseenCase, j testhost.Job, r *cni.Runtime) {
		d := h.daemon(j)
		j.Verb, j.NewProc = "RECOVER", true
		_, done := h.start(j, unix.CLONE_NEWPID|unix.CLONE_NEWNS)
		said := expect.Await(t, "Recover there", done)
		want := map[bool]string{true: "c1: adopted, not known to be healthy: ", false: "c1: skipped: "}[c.hostEnd]
		expect.That(t, strings.HasPrefix(said, want), "Recover says %q, want %q", said, want)
		expect.Same(t, "on record", testhost.Recorded(t, r), []string{"c1/eth0 attached"})
		h.wantWhole(d)
	})
}

// TestFault_F63_ADeadDaemonsContainerIsRemoved: its mounts ended with it, and its container
// with them, as after a restart of a unit that has mounts of its own. The next daemon
// removes it at once, and can see every process that might refer to it.
func TestFault_F63_ADeadDaemonsContainerIsRemoved(t *testing.T) {
	for verb, says := range map[string]string{"RECOVER": "c1: removed", "ADD": ""} {
		t.Run(verb, func(t *testing.T) {
			unseen(t, func(t *testing.T, h *realHost, _ unseenCase, j testhost.Job, r *cni.Runtime) {
				before := h.Audit()
				expect.NoError(t, syscall.Mkfifo(gateOf(h.Path("state"), "c1"), 0o600))
				h.Container("again")
				j.Verb, j.ID, j.NetNS, j.NewProc = restartVerb+verb, "c1", h.Path("netns", "again"), true
				_, done := h.start(j, unix.CLONE_NEWPID|unix.CLONE_NEWNS)
				expect.Same(t, "the next daemon says", expect.Await(t, "the next daemon", done), says)
				if verb == "ADD" {
					expect.NoError(t, r.Remove(t.Context(), "c1", ""))
				}
				expect.Same(t, "on record", testhost.Recorded(t, r), []string{})
				h.WantClean(before)
			})
		})
	}
}
