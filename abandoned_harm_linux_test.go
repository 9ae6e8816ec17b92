package cni_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// reap examines all containers of the runtime's owner.
func reap(t *testing.T, r *cni.Runtime) {
	t.Helper()
	expect.NoError(t, r.Reap(t.Context()))
}

// letGoOf reports whether a container's record says that its namespace was
// released.
func letGoOf(h *testhost.Host, id string) bool {
	h.T.Helper()
	rec := expect.Value(h.Records().Load(record.ID(id)))(h.T)
	expect.Must(h.T, rec != nil, "%s is on no record", id)
	return rec.LetGo != nil
}

// keeps reports whether a container's namespace is pinned.
func keeps(h *testhost.Host, id string) bool {
	h.T.Helper()
	ns, err := netns.Open(h.Pin(id))
	if err != nil {
		return false
	}
	expect.NoError(h.T, ns.Close())
	return true
}

// bridged returns a runtime with a built-in bridge.
func (h *realHost) bridged(opts ...cni.Opt) *cni.Runtime {
	h.T.Helper()
	c := testhost.Case{Plugins: []string{testhost.BridgeConf(`"ipMasq": true, ` + testhost.HostLocal(testhost.V4Range))}}
	list := cni.WithConfListBytes(c.Conf("podnet", "1.0.0", h.Path("ipam")))
	return h.Real(append([]cni.Opt{list, cni.WithBuiltinPlugins()}, opts...)...)
}

// moveMount moves the mount of a container's namespace to another path and
// returns that path.
func (h *realHost) moveMount(path, to string) string {
	h.T.Helper()
	ns := expect.Value(netns.Open(path))(h.T)
	to = h.Path("netns", to)
	expect.NoError(h.T, errors.Join(netns.Pin(ns, to), ns.Close(), netns.Remove(path)))
	h.T.Cleanup(func() { expect.NoError(h.T, netns.Remove(to)) })
	return to
}

// TestFault_F33_AContainerThatAnotherProcessKeepsLives: only the pin is removed. Neither
// the next pass nor Recover treats the container as gone.
func TestFault_F33_AContainerThatAnotherProcessKeepsLives(t *testing.T) {
	for _, who := range []string{"a mount", "a process", "both"} {
		t.Run(who, func(t *testing.T) {
			h := newRealHost(t)
			r := h.bridged()
			before := h.Audit()
			own, kill := testhost.NewTask(t)
			path, other := own, ""
			ns := expect.Value(netns.Open(path))(t)
			path = h.Path("netns", "c1")
			expect.NoError(t, errors.Join(netns.Pin(ns, path), ns.Close()))
			result := expect.Value(r.Setup(t.Context(), "c1", path))(t)
			switch who {
			case "a process":
				expect.NoError(t, netns.Remove(path))
				other = own
			case "both":
				other = h.moveMount(path, "moved")
			default:
				other = h.moveMount(path, "moved")
				kill()
			}
			answers := func() {
				t.Helper()
				h.Serve("", 80)
				h.WantAnswers(testhost.Both(other, testhost.HostPort("10.77.0.1", 80), result.IPv4().IP().String()))
			}
			for range 2 { // the second pass finds it already released
				reap(t, r)
				expect.Same(t, "kept", keeps(h.Host, "c1"), false)
				expect.Same(t, "let go", letGoOf(h.Host, "c1"), true)
			}
			report := expect.Value(r.Recover(t.Context()))(t)
			expect.Same(t, "removed", report.Removed, nil)
			_, skipped := report.Skipped["c1"]
			expect.That(t, skipped == (who == "a mount"), "report %+v", report)
			reap(t, r)
			expect.Same(t, "on record", testhost.Recorded(t, r), []string{"c1/eth0 attached"})
			answers()

			kill()
			expect.NoError(t, netns.Remove(h.Path("netns", "moved")))
			expect.Eventually(h.T, "the end of c1", func() bool {
				reap(t, r)
				return len(testhost.Recorded(t, r)) == 0
			})
			h.WantClean(before)
		})
	}
}

// TestFault_F33_AnUndecidableContainerStays: neither the record nor the pin
// changes.
func TestFault_F33_AnUndecidableContainerStays(t *testing.T) {
	view := func(from, to string) func(*testing.T, *realHost, *record.Record) {
		return func(t *testing.T, _ *realHost, rec *record.Record) {
			changed := strings.Replace(rec.NetNS.View, from, to, 1)
			expect.Must(t, changed != rec.NetNS.View, "no %q in the view %q", from, changed)
			rec.NetNS.View = changed
		}
	}
	for what, spoil := range map[string]func(*testing.T, *realHost, *record.Record){
		"another mount namespace":  view("mnt:[", "mnt:[1"),
		"another PID namespace":    view("pid:[", "pid:[1"),
		"another root directory":   view("root:", "root:1"),
		"an earlier version's":     func(_ *testing.T, _ *realHost, rec *record.Record) { rec.NetNS.View = "" },
		"another boot":             func(_ *testing.T, _ *realHost, rec *record.Record) { rec.Boot = "another" },
		"another owner's":          func(_ *testing.T, _ *realHost, rec *record.Record) { rec.Owner = "another" },
		"another owner's as well":  func(_ *testing.T, _ *realHost, rec *record.Record) { rec.Attachments[1].Owner = "another" },
		"a pool's":                 func(_ *testing.T, _ *realHost, rec *record.Record) { rec.NetNS.Ours = true },
		"relative to a directory":  func(_ *testing.T, _ *realHost, rec *record.Record) { rec.NetNS.Path = "netns/c1" },
		"relative to a process":    func(_ *testing.T, _ *realHost, rec *record.Record) { rec.NetNS.Path = "/proc/self/fd/1000" },
		"relative to a thread":     func(_ *testing.T, _ *realHost, rec *record.Record) { rec.NetNS.Path = "/proc/thread-self/fd/1000" },
		"a descriptor":             func(_ *testing.T, _ *realHost, rec *record.Record) { rec.NetNS.Path = "/dev/fd/1000" },
		"a host that is not found": func(_ *testing.T, _ *realHost, rec *record.Record) { rec.Host, rec.PIDNS = "4:1", 1 },
		"a path that cannot be followed": func(t *testing.T, h *realHost, rec *record.Record) {
			expect.NoError(t, os.Symlink("loop", h.Path("loop")))
			rec.NetNS.Path = h.Path("loop")
		},
	} {
		t.Run(what, func(t *testing.T) {
			h := newRealHost(t)
			r := h.bridged(cni.WithOwner("tester"), cni.WithLoNetwork)
			path := h.Mortal("c1")
			testhost.MustSetUp(t, r, "c1", path)
			expect.NoError(t, netns.Remove(path))
			h.ChangeRecord("c1", func(rec *record.Record) { spoil(t, h, rec) })
			reap(t, r)
			expect.Same(t, "kept", keeps(h.Host, "c1"), true)
			expect.Same(t, "let go", letGoOf(h.Host, "c1"), false)
		})
	}
}

// TestFault_F33_AContainerWithoutAVisibleEndIsReported: it is reported once and
// left alone.
func TestFault_F33_AContainerWithoutAVisibleEndIsReported(t *testing.T) {
	for what, c := range map[string]struct {
		testhost.Case
		opts []cni.Opt
		want string
	}{
		"host-device": {Case: testhost.HostDevice(), want: `plugin \"host-device\" keeps no interface on the host`},
		"macvlan":     {Case: testhost.Macvlan(), want: `plugin \"macvlan\" keeps no interface on the host`},
		"loopback":    {Case: testhost.Case{Plugins: []string{`{"type": "loopback"}`}}, want: "it has no interface but lo"},
		"unknown behind a bridge": {Case: testhost.Case{Plugins: []string{testhost.BridgeConf(testhost.HostLocal(testhost.V4Range)), `{"type": "mesh"}`}},
			opts: []cni.Opt{cni.WithPlugin("mesh", testhost.Idle{})}, want: `plugin \"mesh\" is the caller's`},
		"the caller's bridge": {Case: testhost.Case{Plugins: []string{testhost.BridgeConf(testhost.HostLocal(testhost.V4Range))}},
			opts: []cni.Opt{cni.WithPlugin("bridge", testhost.Idle{})}, want: `plugin \"bridge\" is the caller's`},
	} {
		t.Run(what, func(t *testing.T) {
			h := newRealHost(t)
			if c.Prepare != nil {
				c.Prepare(h.RealHost)
			}
			var log testhost.Log
			opts := append([]cni.Opt{cni.WithConfListBytes(c.Conf("podnet", "1.0.0", h.Path("ipam"))), log.Logger()}, c.opts...)
			r := h.Real(opts...)
			path := h.Mortal("c1")
			testhost.MustSetUp(t, r, "c1", path)
			expect.NoError(t, netns.Remove(path))
			for range 3 {
				reap(t, r)
			}
			expect.Same(t, "kept", keeps(h.Host, "c1"), true)
			expect.Same(t, "let go", letGoOf(h.Host, "c1"), false)
			warned := slices.DeleteFunc(log.Lines("WARN"), func(line string) bool { return !strings.Contains(line, c.want) })
			expect.That(t, len(warned) == 1, "%q is in the log %d times: %q", c.want, len(warned), log.Lines("WARN"))
			expect.Is(t, expect.Value(r.Recover(t.Context()))(t).Kept["c1"], cni.ErrInvalidNetNS)
			expect.NoError(t, r.Remove(t.Context(), "c1", ""))
		})
	}
}

// TestFault_F33_AnUnknownTypeIsLeft: the library knows nothing about this
// executable.
func TestFault_F33_AnUnknownTypeIsLeft(t *testing.T) {
	s := testhost.NewStage(t)
	r := s.Runtime(cni.WithConfListBytes(s.Network("net", "1.0.0", "p")))
	path := s.Container("c1")
	expect.NoError(t, testhost.SetUp(t.Context(), r, "c1", path)())
	s.RemoveNetNS("c1")
	s.TakeCalls()
	reap(t, r)
	expect.Same(t, "kept", keeps(s.Host, "c1"), true)
	expect.Same(t, "calls", s.Took(), []string{})
}

// TestFault_F33_ALockedContainerIsLeft: a container that a call holds locked,
// in this process or another, is left to that call. No pass waits for it.
func TestFault_F33_ALockedContainerIsLeft(t *testing.T) {
	for _, other := range []bool{true, false} {
		t.Run(fmt.Sprint("another process ", other), func(t *testing.T) {
			s := testhost.NewStage(t)
			gate := s.Gate("portmap")
			s.On("portmap", "CHECK", scripted.Action{Block: gate})
			h := &realHost{&testhost.RealHost{Host: s.Host}}
			expect.NoError(t, nettest.NoAddressDetection())
			conf := fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "net", "plugins": [%s, {"type": "portmap", "script": %q}]}`,
				testhost.BridgeConf(strings.ReplaceAll(testhost.HostLocal(testhost.V4Range), "IPAM", h.Path("ipam"))), s.Plugin(s.Scripts["portmap"], "portmap"))
			r := s.Runtime(cni.WithConfListBytes(conf))
			path := h.Mortal("c1")
			testhost.MustSetUp(t, r, "c1", path)
			checking := func() <-chan string {
				if other {
					return s.Elsewhere(conf, "CHECK", "c1", path)
				}
				done := make(chan string, 1)
				go func() { done <- fmt.Sprint(r.Check(context.WithoutCancel(t.Context()), "c1", path)) }()
				return done
			}()
			letGo := s.Arrive(gate)
			expect.NoError(t, netns.Remove(path))
			reap(t, r)
			expect.Same(t, "kept", keeps(s.Host, "c1"), true)
			expect.Same(t, "let go", letGoOf(s.Host, "c1"), false)
			letGo()
			expect.Await(t, "CHECK", checking)
			expect.Eventually(h.T, "the end of c1", func() bool {
				reap(t, r)
				return len(testhost.Recorded(t, r)) == 0
			})
		})
	}
}

// TestFault_F33_WithoutReapingNothingIsLetGo.
func TestFault_F33_WithoutReapingNothingIsLetGo(t *testing.T) {
	h := newRealHost(t)
	r := h.bridged(cni.WithoutReaping())
	path, next := h.Mortal("c1"), h.Container("c2")
	testhost.MustSetUp(t, r, "c1", path)
	expect.NoError(t, netns.Remove(path))
	testhost.MustSetUp(t, r, "c2", next)
	expect.Same(t, "passes", r.Reaped(), false)
	expect.Same(t, "kept", keeps(h.Host, "c1"), true)
	expect.NoError(t, r.Load(cni.WithLoNetwork)) // keeps settings
	testhost.MustSetUp(t, r, "c3", h.Container("c3"))
	expect.Same(t, "passes", r.Reaped(), false)
}

// TestFault_F33_AnotherMountAndPIDNamespaceJudgesNothing: another runtime of
// the same owner sees neither the path nor the process.
func TestFault_F33_AnotherMountAndPIDNamespaceJudgesNothing(t *testing.T) {
	s := testhost.NewStage(t)
	h := &realHost{&testhost.RealHost{Host: s.Host}}
	expect.NoError(t, nettest.NoAddressDetection())
	conf := fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "net", "plugins": [%s]}`,
		testhost.BridgeConf(strings.ReplaceAll(testhost.HostLocal(testhost.V4Range), "IPAM", h.Path("ipam"))))
	r := s.Runtime(cni.WithOwner("tester"), cni.WithConfListBytes(conf))
	own, _ := testhost.NewTask(t)
	testhost.MustSetUp(t, r, "c1", own)
	next := s.Container("c2")
	_, done := s.ProcessFor(testhost.Job{Verb: "REAP", ID: "c2", NetNS: next, Owner: "tester", NewProc: true, Conf: conf},
		&syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS})
	expect.Same(t, "the other runtime", expect.Await(t, "the other runtime", done), "")
	expect.Same(t, "let go", letGoOf(s.Host, "c1"), false)
	expect.Same(t, "kept", keeps(s.Host, "c1"), true)
	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
	expect.NoError(t, r.Remove(t.Context(), "c2", ""))
}
