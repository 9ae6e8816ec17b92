package cni_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

// heard is a plugin in process that notes its calls as "who VERB".
func heard(calls *[]string, who string) acting {
	a := acting{on: map[string]action{}}
	for _, verb := range []string{"ADD", "CHECK", "DEL"} {
		a.on[verb] = func(context.Context, *plugin.Request) error {
			*calls = append(*calls, who+" "+verb)
			return nil
		}
	}
	return a
}

// ranKinds observes which kinds ran: "CHECK p executable".
func ranKinds(calls *[]string) cni.Opt {
	return cni.WithObserver(func(_ context.Context, e cni.Event) {
		*calls = append(*calls, fmt.Sprintf("%s %s %s", e.Operation, e.Plugin, e.PluginKind))
	})
}

// builtIns are the types p and q, in process, as this module's own.
func builtIns(p, q plugin.Plugin) cni.Opt {
	return cni.WithBuiltins(map[string]plugin.Plugin{"p": p, "q": q})
}

// forgetKinds makes a record one of a version that recorded no kinds.
func (h *host) forgetKinds(id string) {
	h.t.Helper()
	store := h.records()
	rec, err := store.Load(record.ID(id))
	wantNil(h.t, err)
	for i := range rec.Networks {
		rec.Networks[i].Plugins = nil
	}
	wantNil(h.t, store.Begin(rec))
}

func take(calls *[]string) []string {
	taken := *calls
	*calls = nil
	return taken
}

// TestFault_F57_CHECKAndDELAreOfTheKindThatAttached, whatever is installed or
// preferred by then.
func TestFault_F57_CHECKAndDELAreOfTheKindThatAttached(t *testing.T) {
	const disk, ours = cni.PluginExecutable, cni.PluginBuiltIn
	for name, tt := range map[string]struct {
		first, later []cni.Opt
		installed    []bool // at first, and later
		want         cni.PluginKind
	}{
		"installed since":             {nil, nil, []bool{false, true}, ours},
		"no longer preferred":         {[]cni.Opt{cni.WithBuiltinPlugins()}, nil, []bool{true, true}, ours},
		"forbidden since":             {nil, []cni.Opt{cni.WithoutBuiltinPlugins()}, []bool{false, true}, ours},
		"forbidden, nothing on disk":  {nil, []cni.Opt{cni.WithoutBuiltinPlugins()}, []bool{false, false}, ours},
		"registered since":            {nil, []cni.Opt{cni.WithPlugin("p", idle{})}, []bool{false, false}, ours},
		"preferred since":             {nil, []cni.Opt{cni.WithBuiltinPlugins()}, []bool{true, true}, disk},
		"an executable, another runs": {nil, []cni.Opt{cni.WithPlugin("p", idle{})}, []bool{true, true}, disk},
		"uninstalled since":           {nil, nil, []bool{true, false}, ours},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			install := func(i int) {
				wantNil(t, os.RemoveAll(s.path("bin")))
				if tt.installed[i] {
					s.plugin(scripted.Script{}, "p")
				}
			}
			conf := cni.WithConfListBytes(s.network("net", "1.0.0", "p"))
			var ran []string
			base := []cni.Opt{conf, builtIns(idle{}, nil), ranKinds(&ran)}
			install(0)
			_, err := s.runtime(append(tt.first, base...)...).Setup(t.Context(), "c1", s.container("c1"))
			wantNil(t, err)
			install(1)
			later := s.runtime(append(tt.later, base...)...)
			take(&ran)
			wantNil(t, later.Check(t.Context(), "c1", s.path("netns", "c1")))
			wantNil(t, later.Remove(t.Context(), "c1", ""))
			wantSame(t, "ran", take(&ran), []string{"CHECK p " + string(tt.want), "DEL p " + string(tt.want)})
			wantSame(t, "on record", recorded(t, later), []string{})
		})
	}
}

// TestFault_F57_AnotherPluginOfTheSameNameIsNotAsked: what a plugin of the
// caller's made is known to that one alone.
func TestFault_F57_AnotherPluginOfTheSameNameIsNotAsked(t *testing.T) {
	s := newStage(t)
	conf := cni.WithConfListBytes(s.network("net", "1.0.0", "tuning"))
	var calls []string
	builtIn := cni.WithBuiltins(map[string]plugin.Plugin{"tuning": heard(&calls, "built in")})
	first := s.runtime(conf, builtIn, cni.WithPlugin("tuning", heard(&calls, "registered")))
	path := s.container("c1")
	_, err := first.Setup(t.Context(), "c1", path)
	wantNil(t, err)
	later := s.runtime(conf, builtIn)
	for verb, err := range map[string]error{
		"check":  later.Check(t.Context(), "c1", path),
		"delete": later.Remove(t.Context(), "c1", path),
	} {
		wantIs(t, err, cni.ErrPluginNotFound)
		op := map[string]string{"check": "check", "delete": "del"}[verb]
		wantSame(t, verb, asError(t, err).Error(), op+` network "net" of container c1, interface eth0: plugin type="tuning" failed (`+verb+`): `+
			`plugin "tuning" was one registered with WithPlugin when the container was attached, and none is now; register it again`)
	}
	wantSame(t, "calls", take(&calls), []string{"registered ADD"})
	wantSame(t, "executed", s.took(), []string{})
	wantSame(t, "on record", recorded(t, later), []string{"c1/eth0 failed"})
	wantNil(t, first.Remove(t.Context(), "c1", path))
	wantSame(t, "calls", take(&calls), []string{"registered DEL"})
}

// TestFault_F57_AnExecutableIsTheOneAtTheRecordedPath, as long as it is there;
// then another of the type is. One that nobody can replace is missing.
func TestFault_F57_AnExecutableIsTheOneAtTheRecordedPath(t *testing.T) {
	s := newStage(t)
	conf := cni.WithConfListBytes(s.network("net", "1.0.0", "p"))
	wantNil(t, os.Rename(s.path("bin"), s.path("old")))
	s.plugin(scripted.Script{}, "p")
	dirs := func(dirs ...string) cni.Opt {
		for i := range dirs {
			dirs[i] = s.path(dirs[i])
		}
		return cni.WithPluginDir(dirs)
	}
	path := s.container("c1")
	_, err := s.runtime(conf, dirs("old", "bin")).Setup(t.Context(), "c1", path)
	wantNil(t, err)
	// The plugin that is meant is the one that logs its calls elsewhere.
	later := s.runtime(conf, dirs("bin"))
	s.takeCalls()
	wantNil(t, os.Remove(s.path("bin", "p")))
	wantNil(t, os.WriteFile(s.path("bin", "p"), []byte("#!/bin/sh\necho '{\"code\": 100, \"msg\": \"another\"}'; exit 1\n"), 0o755))
	wantNil(t, later.Check(t.Context(), "c1", path))
	calls := s.takeCalls()
	wantSame(t, "calls", rendered(calls), []string{"CHECK p c1/eth0"})
	wantSame(t, "CNI_PATH", calls[0].Path, s.path("bin")+":"+s.path("old"))

	wantNil(t, os.Chmod(s.path("old"), 0o777))
	wantIs(t, later.Check(t.Context(), "c1", path), cni.ErrInsecureFile)
	wantNil(t, os.Chmod(s.path("old"), 0o755))

	wantNil(t, os.RemoveAll(s.path("old")))
	wantSame(t, "by another file", asError(t, later.Check(t.Context(), "c1", path)).Msg, "another")
	wantNil(t, os.Remove(s.path("bin", "p")))
	wantIs(t, later.Check(t.Context(), "c1", path), cni.ErrPluginNotFound)
	wantIs(t, later.Remove(t.Context(), "c1", path), cni.ErrPluginNotFound)
	wantSame(t, "on record", recorded(t, later), []string{"c1/eth0 failed"})
	s.plugin(scripted.Script{}, "p")
	wantNil(t, later.Remove(t.Context(), "c1", path))
	wantSame(t, "calls", s.took(), []string{"DEL p c1/eth0"})
}

// TestFault_F57_WithoutARecordedKindEitherMayHaveAttached: a CHECK passes if one
// of both does, and a DEL is by both, the executable first.
func TestFault_F57_WithoutARecordedKindEitherMayHaveAttached(t *testing.T) {
	const disk, ours = " p executable", " p built in"
	for name, old := range map[string]func(s *stage){
		"an older record": func(s *stage) { s.forgetKinds("c1") },
		"no record":       func(s *stage) { s.unrecord("c1") },
	} {
		for _, prefer := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", prefer ", prefer), func(t *testing.T) {
				s := newStage(t)
				conf := cni.WithConfListBytes(s.network("net", "1.0.0", "p"))
				var ran []string
				var fails error
				own := acting{on: map[string]action{"CHECK": func(context.Context, *plugin.Request) error { return fails }}}
				opts := []cni.Opt{conf, builtIns(own, nil), ranKinds(&ran)}
				first, second := disk, ours
				if prefer {
					opts = append(opts, cni.WithBuiltinPlugins())
					first, second = ours, disk
				}
				r, path := s.runtime(opts...), s.container("c1")
				_, err := r.Setup(t.Context(), "c1", path)
				wantNil(t, err)
				old(s)
				check := func() error {
					take(&ran)
					return r.Check(t.Context(), "c1", path)
				}
				wantNil(t, check())
				wantSame(t, "ran", take(&ran), []string{"CHECK" + first})
				fails = errors.New("not mine")
				wantNil(t, check())
				s.on("p", "CHECK", says(100, "not mine either"))
				wantIs(t, check(), fails)
				wantSame(t, "ran", take(&ran), []string{"CHECK" + first, "CHECK" + second})
				fails = nil
				wantNil(t, check())
				take(&ran)
				wantNil(t, r.Remove(t.Context(), "c1", path))
				wantSame(t, "ran", take(&ran), []string{"DEL" + disk, "DEL" + ours})
			})
		}
	}
}

// TestFault_F57_OneOfTwoDELsMayFailWhereTheSweepSeesThatNothingIsLeft: nobody
// knows which of them was the one to succeed.
func TestFault_F57_OneOfTwoDELsMayFailWhereTheSweepSeesThatNothingIsLeft(t *testing.T) {
	for typ, covered := range map[string]bool{"bandwidth": true, "p": false} {
		t.Run(typ, func(t *testing.T) {
			s := newStage(t)
			r, path := s.runtime(cni.WithConfListBytes(s.network("net", "1.0.0", typ)),
				cni.WithBuiltins(map[string]plugin.Plugin{typ: idle{}})), s.container("c1")
			_, err := r.Setup(t.Context(), "c1", path)
			wantNil(t, err)
			s.forgetKinds("c1")
			s.on(typ, "DEL", says(100, "not mine"))
			err = r.Remove(t.Context(), "c1", path)
			wantSame(t, "removed", err == nil, covered)
			if err != nil {
				wantSame(t, "errors", messages(err), []string{typ + ": not mine"})
			}
		})
	}
}

// TestFault_F57_AnADDRunsWhatIsRecorded, also if another one is installed
// meanwhile.
func TestFault_F57_AnADDRunsWhatIsRecorded(t *testing.T) {
	s := newStage(t)
	conf := s.network("net", "1.0.0", "p", "q")
	wantNil(t, os.RemoveAll(s.path("bin")))
	installs := acting{on: map[string]action{"ADD": func(context.Context, *plugin.Request) error {
		s.plugin(scripted.Script{}, "q")
		return nil
	}}}
	var ran []string
	r := s.runtime(cni.WithConfListBytes(conf), builtIns(installs, idle{}), ranKinds(&ran))
	_, err := r.Setup(t.Context(), "c1", s.container("c1"))
	wantNil(t, err)
	wantSame(t, "ran", take(&ran), []string{"ADD p built in", "ADD q built in"})
	wantNil(t, r.Remove(t.Context(), "c1", ""))
}

// TestFault_F57_APluginThatWasNotThereHasNothingToUndo, even if it is there by
// then.
func TestFault_F57_APluginThatWasNotThereHasNothingToUndo(t *testing.T) {
	s := newStage(t)
	conf := s.network("net", "1.0.0", "p", "q")
	wantNil(t, os.Remove(s.path("bin", "q")))
	s.on("p", "DEL", says(100, "busy"))
	r := s.runtime(cni.WithConfListBytes(conf))
	_, err := r.Setup(t.Context(), "c1", s.container("c1"))
	wantIs(t, err, cni.ErrPluginNotFound)
	wantSame(t, "on record", recorded(t, r), []string{"c1/eth0 failed"})
	s.on("p", "DEL", scripted.Action{})
	s.on("q", "DEL", says(100, "what container?"))
	s.takeCalls()
	wantNil(t, r.Remove(t.Context(), "c1", ""))
	wantSame(t, "calls", s.took(), []string{"DEL p c1/eth0"})
}

// TestFault_F57_ADelegateIsRecordedBeforeItRuns: what a plugin in process
// delegates to is not in the configuration.
func TestFault_F57_ADelegateIsRecordedBeforeItRuns(t *testing.T) {
	s := newStage(t)
	s.on("disk", "ADD", scripted.Action{})
	var plugins []record.Plugin
	delegates := func(verb string) action {
		return func(ctx context.Context, r *plugin.Request) error {
			_, err := r.Delegate(ctx, verb, "disk", s.scriptOf("disk"))
			if err == nil && verb == "ADD" {
				_, err = r.Delegate(ctx, verb, "own", r.Config)
			}
			return err
		}
	}
	main := acting{on: map[string]action{"ADD": delegates("ADD"), "CHECK": delegates("CHECK"), "DEL": delegates("DEL")}}
	own := acting{on: map[string]action{"ADD": func(context.Context, *plugin.Request) error {
		rec, err := s.records().Load("c1")
		if err == nil {
			plugins = rec.Networks[0].Plugins
		}
		return err
	}}}
	opts := []cni.Opt{cni.WithPlugin("main", main), cni.WithPlugin("own", own), listOfTypes("net", "main")}
	path := s.container("c1")
	_, err := s.runtime(opts...).Setup(t.Context(), "c1", path)
	wantNil(t, err)
	wantSame(t, "recorded", plugins, []record.Plugin{{Type: "main", Kind: "registered"},
		{Type: "disk", Kind: "executable", Path: s.path("bin", "disk")}, {Type: "own", Kind: "registered"}})
	s.takeCalls()
	r := s.runtime(append(opts, cni.WithPlugin("disk", fails("DEL", errors.New("another"))))...)
	wantNil(t, r.Check(t.Context(), "c1", path))
	wantNil(t, r.Remove(t.Context(), "c1", path))
	wantSame(t, "calls", s.took(), []string{"CHECK disk c1/eth0", "DEL disk c1/eth0"})
}

// TestFault_F57_AContainerOfAPoolHasThePluginsThatMadeIt, and for the rest those
// that ran when it was taken.
func TestFault_F57_AContainerOfAPoolHasThePluginsThatMadeIt(t *testing.T) {
	s := newStage(t)
	s.plugin(scripted.Script{}, "portmap")
	conf := cni.WithConfListBytes(fmt.Appendf(nil, `{"cniVersion": "1.1.0", "name": "net", "plugins": [
		{"type": "bridge", "script": %q}, {"type": "portmap", "script": %q, "capabilities": {"portMappings": true}}]}`,
		s.path("script-bridge"), s.path("script-portmap")))
	dirs := cni.WithPluginDir([]string{s.path("bin"), s.path("moved")})
	var ran []string
	opts := []cni.Opt{conf, dirs, cni.WithOwner("tester"), cni.WithBuiltins(map[string]plugin.Plugin{"bridge": idle{}})}
	r := s.runtime(opts...)
	p, err := r.NewPool(cni.PoolOptions{Size: 1})
	wantNil(t, err)
	warm := s.wantFull(r, p, 1)[0]
	wantNil(t, os.Rename(s.path("bin"), s.path("moved")))
	s.plugin(scripted.Script{}, "bridge")
	path, _, err := p.Setup(t.Context(), "c1", cni.WithCapabilityPortMap([]cni.PortMapping{{HostPort: 80, ContainerPort: 8080}}))
	wantNil(t, err)
	rec, err := s.records().Load("c1")
	wantNil(t, err)
	wantSame(t, "known to plugins as", rec.Plugins(), record.PluginID(warm))
	wantSame(t, "plugins", rec.Networks[0].Plugins, []record.Plugin{
		{Type: "bridge", Kind: "built in"}, {Type: "portmap", Kind: "executable", Path: s.path("moved", "portmap")}})
	later := s.runtime(append(opts, ranKinds(&ran))...)
	wantNil(t, later.Check(t.Context(), "c1", path))
	wantNil(t, later.Remove(t.Context(), "c1", path))
	wantSame(t, "ran", take(&ran), []string{"CHECK bridge built in", "CHECK portmap executable",
		"DEL portmap executable", "DEL bridge built in"})
	wantNil(t, p.Close())
}

// detecting is a built-in plugin whose rules go where the host has them.
type detecting struct {
	acting
	now *string
}

func (d detecting) Detect(context.Context, *netns.Handle, json.RawMessage) (string, error) {
	return *d.now, nil
}

// TestFault_F57_TheDetectedBackendIsTheRecorded: iptables may be installed while
// containers are attached.
func TestFault_F57_TheDetectedBackendIsTheRecorded(t *testing.T) {
	s := newStage(t)
	now := netfilter.DetectedNative
	var chosen []string
	own := detecting{acting{on: map[string]action{}}, &now}
	for _, verb := range []string{"ADD", "CHECK", "DEL"} {
		own.on[verb] = func(ctx context.Context, _ *plugin.Request) error {
			detected, _ := netfilter.Detected(ctx)
			chosen = append(chosen, verb+" "+detected)
			return nil
		}
	}
	r, path := s.runtime(builtIns(own, nil), listOfTypes("net", "p")), s.container("c1")
	_, err := r.Setup(t.Context(), "c1", path)
	wantNil(t, err)
	now = netfilter.DetectedIPTables
	wantNil(t, r.Check(t.Context(), "c1", path))
	wantNil(t, r.Remove(t.Context(), "c1", path))
	wantSame(t, "chosen", take(&chosen), []string{"ADD native", "CHECK native", "DEL native"})
	_, err = r.Setup(t.Context(), "c2", s.container("c2"))
	wantNil(t, err)
	now = netfilter.DetectedNative
	wantNil(t, r.Remove(t.Context(), "c2", ""))
	wantSame(t, "chosen", take(&chosen), []string{"ADD iptables", "DEL iptables"})
}
