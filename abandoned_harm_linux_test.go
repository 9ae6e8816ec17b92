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
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/netns"
)

// reap looks at all containers of the runtime's owner.
func reap(t *testing.T, r *cni.Runtime) {
	t.Helper()
	_, err := r.Reap(t.Context())
	wantNil(t, err)
}

// letGoOf reports whether the record says that a container's namespace was let go.
func letGoOf(h *host, id string) bool {
	h.t.Helper()
	rec, err := h.records().Load(record.ID(id))
	wantNil(h.t, err)
	if rec == nil {
		h.t.Fatalf("%s is on no record", id)
	}
	return rec.LetGo != nil
}

// keeps reports whether a container's namespace is pinned.
func keeps(h *host, id string) bool {
	h.t.Helper()
	ns, err := netns.Open(h.pin(id))
	if err != nil {
		return false
	}
	wantNil(h.t, ns.Close())
	return true
}

// bridged is a runtime with a bridge, built in.
func (h *realHost) bridged(opts ...cni.Opt) *cni.Runtime {
	h.t.Helper()
	c := realCase{plugins: []string{bridgeConf(`"ipMasq": true, ` + hostLocal(v4Range))}}
	list := cni.WithConfListBytes(c.conf("podnet", "1.0.0", h.path("ipam")))
	return h.real(append([]cni.Opt{list, cni.WithBuiltinPlugins()}, opts...)...)
}

// elsewhere mounts a container's namespace at another path, which is returned, and
// takes the first one away.
func (h *realHost) moveMount(path, to string) string {
	h.t.Helper()
	ns, err := netns.Open(path)
	wantNil(h.t, err)
	to = h.path("netns", to)
	wantNil(h.t, errors.Join(netns.Pin(ns, to), ns.Close(), netns.Remove(path)))
	h.t.Cleanup(func() { wantNil(h.t, netns.Remove(to)) })
	return to
}

// TestFault_F33_WhatSomebodyElseKeepsLives: only the pin is let go, and neither the
// next pass nor Recover takes the container for gone.
func TestFault_F33_WhatSomebodyElseKeepsLives(t *testing.T) {
	for _, who := range []string{"a mount", "a process", "both"} {
		t.Run(who, func(t *testing.T) {
			h := newRealHost(t)
			r := h.bridged()
			before := h.audit()
			k := newTask(t)
			path, other := k.path(), ""
			ns, err := netns.Open(path)
			wantNil(t, err)
			path = h.path("netns", "c1")
			wantNil(t, errors.Join(netns.Pin(ns, path), ns.Close()))
			result, err := r.Setup(t.Context(), "c1", path)
			wantNil(t, err)
			switch who {
			case "a process":
				wantNil(t, netns.Remove(path))
				other = k.path()
			case "both":
				other = h.moveMount(path, "moved")
			default:
				other = h.moveMount(path, "moved")
				k.kill()
			}
			answers := func() {
				t.Helper()
				h.serve("", 80)
				h.wantAnswers(both(other, port("10.77.0.1", 80), result.IPv4().IP().String()))
			}
			for range 2 { // the second time it was let go before
				reap(t, r)
				wantSame(t, "kept", keeps(h.host, "c1"), false)
				wantSame(t, "let go", letGoOf(h.host, "c1"), true)
			}
			report, err := r.Recover(t.Context())
			wantNil(t, err)
			wantSame(t, "removed", report.Removed, nil)
			if _, skipped := report.Skipped["c1"]; skipped != (who == "a mount") {
				t.Errorf("report %+v", report)
			}
			reap(t, r)
			wantSame(t, "on record", recorded(t, r), []string{"c1/eth0 attached"})
			answers()

			k.kill()
			wantNil(t, netns.Remove(h.path("netns", "moved")))
			h.eventually("the end of c1", func() bool {
				reap(t, r)
				return len(recorded(t, r)) == 0
			})
			h.wantClean(before)
		})
	}
}

// TestFault_F33_WhatCannotBeJudgedStays: neither record nor pin changes.
func TestFault_F33_WhatCannotBeJudgedStays(t *testing.T) {
	view := func(from, to string) func(*testing.T, *realHost, *record.Record) {
		return func(t *testing.T, _ *realHost, rec *record.Record) {
			changed := strings.Replace(rec.NetNS.View, from, to, 1)
			if changed == rec.NetNS.View {
				t.Fatalf("no %q in the view %q", from, changed)
			}
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
		"another owner's as well":  func(_ *testing.T, _ *realHost, rec *record.Record) { rec.Networks[1].Owner = "another" },
		"a pool's":                 func(_ *testing.T, _ *realHost, rec *record.Record) { rec.NetNS.Ours = true },
		"relative to a directory":  func(_ *testing.T, _ *realHost, rec *record.Record) { rec.NetNS.Path = "netns/c1" },
		"relative to a process":    func(_ *testing.T, _ *realHost, rec *record.Record) { rec.NetNS.Path = "/proc/self/fd/1000" },
		"relative to a thread":     func(_ *testing.T, _ *realHost, rec *record.Record) { rec.NetNS.Path = "/proc/thread-self/fd/1000" },
		"a descriptor":             func(_ *testing.T, _ *realHost, rec *record.Record) { rec.NetNS.Path = "/dev/fd/1000" },
		"a host that is not found": func(_ *testing.T, _ *realHost, rec *record.Record) { rec.Host, rec.PIDNS = "4:1", 1 },
		"a path that cannot be followed": func(t *testing.T, h *realHost, rec *record.Record) {
			wantNil(t, os.Symlink("loop", h.path("loop")))
			rec.NetNS.Path = h.path("loop")
		},
	} {
		t.Run(what, func(t *testing.T) {
			h := newRealHost(t)
			r := h.bridged(cni.WithOwner("tester"), cni.WithLoNetwork)
			path := h.mortal("c1")
			setUpOrFail(t, r, "c1", path)
			wantNil(t, netns.Remove(path))
			h.changeRecord("c1", func(rec *record.Record) { spoil(t, h, rec) })
			reap(t, r)
			wantSame(t, "kept", keeps(h.host, "c1"), true)
			wantSame(t, "let go", letGoOf(h.host, "c1"), false)
		})
	}
}

// TestFault_F33_WhatNobodyCanTellTheEndOfIsReported, once, and stays as it is.
func TestFault_F33_WhatNobodyCanTellTheEndOfIsReported(t *testing.T) {
	cases := map[string]struct {
		realCase
		opts []cni.Opt
		want string
	}{
		"host-device": {realCase: goneCases()[5].network, want: `plugin \"host-device\" keeps no interface on the host`},
		"macvlan":     {realCase: goneCases()[4].network, want: `plugin \"macvlan\" keeps no interface on the host`},
		"loopback":    {realCase: realCase{plugins: []string{`{"type": "loopback"}`}}, want: "it has no interface but lo"},
		"unknown behind a bridge": {realCase: realCase{plugins: []string{bridgeConf(hostLocal(v4Range)), `{"type": "mesh"}`}},
			opts: []cni.Opt{cni.WithPlugin("mesh", idle{})}, want: `plugin \"mesh\" is the caller's`},
		"the caller's bridge": {realCase: realCase{plugins: []string{bridgeConf(hostLocal(v4Range))}},
			opts: []cni.Opt{cni.WithPlugin("bridge", idle{})}, want: `plugin \"bridge\" is the caller's`},
	}
	for what, c := range cases {
		t.Run(what, func(t *testing.T) {
			h := newRealHost(t)
			if c.prepare != nil {
				c.prepare(h)
			}
			var log logged
			opts := append([]cni.Opt{cni.WithConfListBytes(c.conf("podnet", "1.0.0", h.path("ipam"))), log.logger()}, c.opts...)
			r := h.real(opts...)
			path := h.mortal("c1")
			setUpOrFail(t, r, "c1", path)
			wantNil(t, netns.Remove(path))
			for range 3 {
				reap(t, r)
			}
			wantSame(t, "kept", keeps(h.host, "c1"), true)
			wantSame(t, "let go", letGoOf(h.host, "c1"), false)
			warned := slices.DeleteFunc(log.lines("WARN"), func(line string) bool { return !strings.Contains(line, c.want) })
			if len(warned) != 1 {
				t.Errorf("%q is in the log %d times: %q", c.want, len(warned), log.lines("WARN"))
			}
			report, err := r.Recover(t.Context())
			wantNil(t, err)
			wantIs(t, report.Kept["c1"], cni.ErrInvalidNetNS)
			wantNil(t, r.Remove(t.Context(), "c1", ""))
		})
	}
}

// TestFault_F33_AnUnknownTypeIsLeft: an executable that nobody knows.
func TestFault_F33_AnUnknownTypeIsLeft(t *testing.T) {
	s := newStage(t)
	r := s.runtime(cni.WithConfListBytes(s.network("net", "1.0.0", "p")))
	path := s.container("c1")
	wantNil(t, setUp(t.Context(), r, "c1", path)())
	s.forget("c1")
	s.takeCalls()
	reap(t, r)
	wantSame(t, "kept", keeps(s.host, "c1"), true)
	wantSame(t, "calls", s.took(), []string{})
}

// TestFault_F33_ALockedContainerIsLeft to the call that has it locked, in this
// process and in another one, and no pass waits for that.
func TestFault_F33_ALockedContainerIsLeft(t *testing.T) {
	for _, other := range []bool{true, false} {
		t.Run(fmt.Sprint("another process ", other), func(t *testing.T) {
			s := newStage(t)
			gate := s.gate("portmap")
			s.on("portmap", "CHECK", scripted.Action{Block: gate})
			h := &realHost{host: s.host}
			wantNil(t, noAddressDetection())
			conf := fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "net", "plugins": [%s, {"type": "portmap", "script": %q}]}`,
				bridgeConf(strings.ReplaceAll(hostLocal(v4Range), "IPAM", h.path("ipam"))), s.plugin(s.scripts["portmap"], "portmap"))
			r := s.runtime(cni.WithConfListBytes(conf))
			path := h.mortal("c1")
			setUpOrFail(t, r, "c1", path)
			checking := func() <-chan string {
				if other {
					return s.elsewhere(conf, "CHECK", "c1", path)
				}
				done := make(chan string, 1)
				go func() { done <- fmt.Sprint(r.Check(context.WithoutCancel(t.Context()), "c1", path)) }()
				return done
			}()
			letGo := s.arrive(gate)
			wantNil(t, netns.Remove(path))
			reap(t, r)
			wantSame(t, "kept", keeps(s.host, "c1"), true)
			wantSame(t, "let go", letGoOf(s.host, "c1"), false)
			letGo()
			await(t, "CHECK", checking)
			h.eventually("the end of c1", func() bool {
				reap(t, r)
				return len(recorded(t, r)) == 0
			})
		})
	}
}

// TestFault_F33_WithoutReapingNothingIsLetGo.
func TestFault_F33_WithoutReapingNothingIsLetGo(t *testing.T) {
	h := newRealHost(t)
	r := h.bridged(cni.WithoutReaping())
	path, next := h.mortal("c1"), h.container("c2")
	setUpOrFail(t, r, "c1", path)
	wantNil(t, netns.Remove(path))
	setUpOrFail(t, r, "c2", next)
	wantSame(t, "passes", r.Reaped(), false)
	wantSame(t, "kept", keeps(h.host, "c1"), true)
	wantNil(t, r.Load(cni.WithLoNetwork)) // keeps settings
	setUpOrFail(t, r, "c3", h.container("c3"))
	wantSame(t, "passes", r.Reaped(), false)
}

// TestFault_F33_AnotherMountAndPIDNamespaceJudgesNothing: another runtime of the
// owner, to which neither path nor process is there.
func TestFault_F33_AnotherMountAndPIDNamespaceJudgesNothing(t *testing.T) {
	s := newStage(t)
	h := &realHost{host: s.host}
	wantNil(t, noAddressDetection())
	conf := fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "net", "plugins": [%s]}`,
		bridgeConf(strings.ReplaceAll(hostLocal(v4Range), "IPAM", h.path("ipam"))))
	r := s.runtime(cni.WithOwner("tester"), cni.WithConfListBytes(conf))
	k := newTask(t)
	setUpOrFail(t, r, "c1", k.path())
	next := s.container("c2")
	_, done := s.processFor(job{Verb: "REAP", ID: "c2", NetNS: next, Owner: "tester", NewProc: true, Conf: conf},
		&syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS})
	wantSame(t, "the other runtime", await(t, "the other runtime", done), "")
	wantSame(t, "let go", letGoOf(s.host, "c1"), false)
	wantSame(t, "kept", keeps(s.host, "c1"), true)
	wantNil(t, r.Remove(t.Context(), "c1", ""))
	wantNil(t, r.Remove(t.Context(), "c2", ""))
}
