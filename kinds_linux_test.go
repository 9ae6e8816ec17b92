package cni_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/netfilter"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

// heard returns an in-process plugin that records its calls as "who VERB".
func heard(calls *[]string, who string) testhost.Acting {
	return testhost.Acting{Every: func(_ context.Context, verb string, _ *plugin.Request) error {
		*calls = append(*calls, who+" "+verb)
		return nil
	}}
}

// ranKinds records the kinds that ran: "CHECK p executable".
func ranKinds(calls *[]string) cni.Opt {
	return cni.WithObserver(func(_ context.Context, e cni.Event) {
		*calls = append(*calls, fmt.Sprintf("%s %s %s", e.Operation, e.Plugin, e.PluginKind))
	})
}

// builtIns makes p and q built-in types, like this module's own.
func builtIns(p, q plugin.Plugin) cni.Opt {
	return cni.WithBuiltins(map[string]plugin.Plugin{"p": p, "q": q})
}

func take(calls *[]string) []string {
	taken := *calls
	*calls = nil
	return taken
}

// TestFault_F57_CHECKAndDELAreOfTheKindThatAttached, whatever is installed or
// preferred by then.
func TestFault_F57_CHECKAndDELAreOfTheKindThatAttached(t *testing.T) {
	const disk, ours = "executable", "built in"
	for name, tt := range map[string]struct {
		first, later []cni.Opt
		installed    []bool // at first, and later
		want         string
	}{
		"installed since":             {nil, nil, []bool{false, true}, ours},
		"no longer preferred":         {[]cni.Opt{cni.WithBuiltinPlugins()}, nil, []bool{true, true}, ours},
		"registered since":            {nil, []cni.Opt{cni.WithPlugin("p", testhost.Idle{})}, []bool{false, false}, ours},
		"preferred since":             {nil, []cni.Opt{cni.WithBuiltinPlugins()}, []bool{true, true}, disk},
		"an executable, another runs": {nil, []cni.Opt{cni.WithPlugin("p", testhost.Idle{})}, []bool{true, true}, disk},
		"uninstalled since":           {nil, nil, []bool{true, false}, ours},
	} {
		t.Run(name, func(t *testing.T) {
			s := testhost.NewStage(t)
			install := func(i int) {
				expect.NoError(t, os.RemoveAll(s.Path("bin")))
				if tt.installed[i] {
					s.Plugin(scripted.Script{}, "p")
				}
			}
			conf := cni.WithConfListBytes(s.Network("net", "1.0.0", "p"))
			var ran []string
			base := []cni.Opt{conf, builtIns(testhost.Idle{}, nil), ranKinds(&ran)}
			install(0)
			expect.Value(s.Runtime(append(tt.first, base...)...).Setup(t.Context(), "c1", s.Container("c1")))(t)
			install(1)
			later := s.Runtime(append(tt.later, base...)...)
			take(&ran)
			expect.NoError(t, later.Check(t.Context(), "c1", s.Path("netns", "c1")))
			expect.NoError(t, later.Remove(t.Context(), "c1", ""))
			expect.Same(t, "ran", take(&ran), []string{"CHECK p " + string(tt.want), "DEL p " + string(tt.want)})
			expect.Same(t, "on record", testhost.Recorded(t, later), []string{})
		})
	}
}

// TestFault_F57_AnotherPluginOfTheSameNameIsNotAsked: only the plugin that attached knows
// the objects that it made. A program may no longer register it, or link it.
func TestFault_F57_AnotherPluginOfTheSameNameIsNotAsked(t *testing.T) {
	for who, why := range map[string]string{
		"registered": "one registered with WithPlugin when the container was attached, and none is now; register it again",
		"built in":   "the one built in when the container was attached, and none is now; name WithBuiltinPlugins or WithBuiltinFallback",
	} {
		t.Run(who, func(t *testing.T) {
			s := testhost.NewStage(t)
			conf := cni.WithConfListBytes(s.Network("net", "1.0.0", "tuning"))
			var calls []string
			builtIn := cni.WithBuiltins(map[string]plugin.Plugin{"tuning": heard(&calls, "built in")})
			opts, laterOpts := []cni.Opt{conf, builtIn, cni.WithBuiltinPlugins()}, []cni.Opt{conf}
			if who == "registered" {
				opts[2], laterOpts = cni.WithPlugin("tuning", heard(&calls, who)), opts[:2]
			}
			s.NoBuiltins = true
			first, later := s.Runtime(opts...), s.Runtime(laterOpts...)
			path := s.Container("c1")
			expect.Value(first.Setup(t.Context(), "c1", path))(t)
			for verb, err := range map[string]error{
				"check":  later.Check(t.Context(), "c1", path),
				"delete": later.Remove(t.Context(), "c1", path),
			} {
				expect.Is(t, err, cni.ErrPluginNotFound)
				op := map[string]string{"check": "check", "delete": "del"}[verb]
				expect.Same(t, verb, testhost.AsError(t, err).Error(), op+` network "net" of container c1, interface eth0: plugin type="tuning" failed (`+verb+`): `+
					`plugin "tuning" was `+why)
			}
			expect.Same(t, "calls", take(&calls), []string{who + " ADD"})
			expect.Same(t, "executed", s.Took(), []string{})
			expect.Same(t, "on record", testhost.Recorded(t, later), []string{"c1/eth0 failed"})
			expect.NoError(t, first.Remove(t.Context(), "c1", path))
			expect.Same(t, "calls", take(&calls), []string{who + " DEL"})
		})
	}
}

// TestFault_F57_AnExecutableIsTheOneAtTheRecordedPath while it exists. After
// that another one of the type is used. A plugin without a replacement is
// missing.
func TestFault_F57_AnExecutableIsTheOneAtTheRecordedPath(t *testing.T) {
	s := testhost.NewStage(t)
	conf := cni.WithConfListBytes(s.Network("net", "1.0.0", "p"))
	expect.NoError(t, os.Rename(s.Path("bin"), s.Path("old")))
	s.Plugin(scripted.Script{}, "p")
	dirs := func(dirs ...string) cni.Opt {
		for i := range dirs {
			dirs[i] = s.Path(dirs[i])
		}
		return cni.WithPluginDir(dirs)
	}
	path := s.Container("c1")
	expect.Value(s.Runtime(conf, dirs("old", "bin")).Setup(t.Context(), "c1", path))(t)
	// The intended plugin logs its calls to another file.
	later := s.Runtime(conf, dirs("bin"))
	s.TakeCalls()
	expect.NoError(t, os.Remove(s.Path("bin", "p")))
	expect.NoError(t, os.WriteFile(s.Path("bin", "p"), []byte("#!/bin/sh\necho '{\"code\": 100, \"msg\": \"another\"}'; exit 1\n"), 0o755))
	expect.NoError(t, later.Check(t.Context(), "c1", path))
	calls := s.TakeCalls()
	expect.Same(t, "calls", testhost.Rendered(calls), []string{"CHECK p c1/eth0"})
	expect.Same(t, "CNI_PATH", calls[0].Path, s.Path("bin")+":"+s.Path("old"))

	expect.NoError(t, os.Chmod(s.Path("old"), 0o777))
	expect.Is(t, later.Check(t.Context(), "c1", path), cni.ErrInsecureFile)
	expect.NoError(t, os.Chmod(s.Path("old"), 0o755))

	expect.NoError(t, os.RemoveAll(s.Path("old")))
	expect.Same(t, "by another file", testhost.AsError(t, later.Check(t.Context(), "c1", path)).Msg, "another")
	expect.NoError(t, os.Remove(s.Path("bin", "p")))
	expect.Is(t, later.Check(t.Context(), "c1", path), cni.ErrPluginNotFound)
	expect.Is(t, later.Remove(t.Context(), "c1", path), cni.ErrPluginNotFound)
	expect.Same(t, "on record", testhost.Recorded(t, later), []string{"c1/eth0 failed"})
	s.Plugin(scripted.Script{}, "p")
	expect.NoError(t, later.Remove(t.Context(), "c1", path))
	expect.Same(t, "calls", s.Took(), []string{"DEL p c1/eth0"})
}

// TestFault_F57_WithoutARecordedKindEitherMayHaveAttached: CHECK succeeds if
// one of the two does. Both run DEL, the executable first.
func TestFault_F57_WithoutARecordedKindEitherMayHaveAttached(t *testing.T) {
	const disk, ours = " p executable", " p built in"
	for name, old := range map[string]func(s *testhost.Stage){
		"an older record": func(s *testhost.Stage) { s.ForgetKinds("c1") },
		"no record":       func(s *testhost.Stage) { s.Unrecord("c1") },
	} {
		for _, prefer := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", prefer ", prefer), func(t *testing.T) {
				s := testhost.NewStage(t)
				conf := cni.WithConfListBytes(s.Network("net", "1.0.0", "p"))
				var ran []string
				var fails error
				own := testhost.Acting{On: map[string]testhost.Action{"CHECK": func(context.Context, *plugin.Request) error { return fails }}}
				opts := []cni.Opt{conf, builtIns(own, nil), ranKinds(&ran)}
				first, second := disk, ours
				if prefer {
					opts = append(opts, cni.WithBuiltinPlugins())
					first, second = ours, disk
				}
				r, path := s.Runtime(opts...), s.Container("c1")
				expect.Value(r.Setup(t.Context(), "c1", path))(t)
				old(s)
				check := func() error {
					take(&ran)
					return r.Check(t.Context(), "c1", path)
				}
				expect.NoError(t, check())
				expect.Same(t, "ran", take(&ran), []string{"CHECK" + first})
				fails = errors.New("not mine")
				expect.NoError(t, check())
				s.On("p", "CHECK", testhost.Says(100, "not mine either"))
				expect.Is(t, check(), fails)
				expect.Same(t, "ran", take(&ran), []string{"CHECK" + first, "CHECK" + second})
				fails = nil
				expect.NoError(t, check())
				take(&ran)
				expect.NoError(t, r.Remove(t.Context(), "c1", path))
				expect.Same(t, "ran", take(&ran), []string{"DEL" + disk, "DEL" + ours})
			})
		}
	}
}

// TestFault_F57_OneOfTwoDELsMayFailWhereTheSweepSeesThatNothingIsLeft, because
// nobody knows which of them should succeed.
func TestFault_F57_OneOfTwoDELsMayFailWhereTheSweepSeesThatNothingIsLeft(t *testing.T) {
	for typ, covered := range map[string]bool{"bandwidth": true, "p": false} {
		t.Run(typ, func(t *testing.T) {
			s := testhost.NewStage(t)
			r, path := s.Runtime(cni.WithConfListBytes(s.Network("net", "1.0.0", typ)),
				cni.WithBuiltins(map[string]plugin.Plugin{typ: testhost.Idle{}})), s.Container("c1")
			expect.NoError(t, expect.Err(r.Setup(t.Context(), "c1", path)))
			s.ForgetKinds("c1")
			s.On(typ, "DEL", testhost.Says(100, "not mine"))
			err := r.Remove(t.Context(), "c1", path)
			expect.Same(t, "removed", err == nil, covered)
			if err != nil {
				expect.Same(t, "errors", testhost.Messages(err), []string{typ + ": not mine"})
			}
		})
	}
}

// TestFault_F57_AnADDRunsTheRecordedPlugin, even if another one is installed
// meanwhile.
func TestFault_F57_AnADDRunsTheRecordedPlugin(t *testing.T) {
	s := testhost.NewStage(t)
	conf := s.Network("net", "1.0.0", "p", "q")
	expect.NoError(t, os.RemoveAll(s.Path("bin")))
	installs := testhost.Acting{On: map[string]testhost.Action{"ADD": func(context.Context, *plugin.Request) error {
		s.Plugin(scripted.Script{}, "q")
		return nil
	}}}
	var ran []string
	r := s.Runtime(cni.WithConfListBytes(conf), builtIns(installs, testhost.Idle{}), ranKinds(&ran))
	expect.Value(r.Setup(t.Context(), "c1", s.Container("c1")))(t)
	expect.Same(t, "ran", take(&ran), []string{"ADD p built in", "ADD q built in"})
	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
}

// TestFault_F57_APluginThatWasNotThereHasNothingToUndo, even if it exists by
// then.
func TestFault_F57_APluginThatWasNotThereHasNothingToUndo(t *testing.T) {
	s := testhost.NewStage(t)
	conf := s.Network("net", "1.0.0", "p", "q")
	expect.NoError(t, os.Remove(s.Path("bin", "q")))
	s.On("p", "DEL", testhost.Says(100, "busy"))
	r := s.Runtime(cni.WithConfListBytes(conf))
	expect.Is(t, expect.Err(r.Setup(t.Context(), "c1", s.Container("c1"))), cni.ErrPluginNotFound)
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{"c1/eth0 failed"})
	s.On("p", "DEL", scripted.Action{})
	s.On("q", "DEL", testhost.Says(100, "what container?"))
	s.TakeCalls()
	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
	expect.Same(t, "calls", s.Took(), []string{"DEL p c1/eth0"})
}

// TestFault_F57_ADelegateIsRecordedBeforeItRuns: the configuration does not
// name an in-process plugin's delegate.
func TestFault_F57_ADelegateIsRecordedBeforeItRuns(t *testing.T) {
	s := testhost.NewStage(t)
	s.On("disk", "ADD", scripted.Action{})
	var plugins []record.Plugin
	main := testhost.Acting{Every: func(ctx context.Context, verb string, r *plugin.Request) error {
		_, err := r.Delegate(ctx, verb, "disk", s.ScriptOf("disk"))
		if err == nil && verb == "ADD" {
			_, err = r.Delegate(ctx, verb, "own", r.Config)
		}
		return err
	}}
	own := testhost.Acting{On: map[string]testhost.Action{"ADD": func(context.Context, *plugin.Request) error {
		rec, err := s.Records().Load("c1")
		if err == nil {
			plugins = rec.Attachments[0].Plugins
		}
		return err
	}}}
	opts := []cni.Opt{cni.WithPlugin("main", main), cni.WithPlugin("own", own), testhost.ListOfTypes("net", "main")}
	path := s.Container("c1")
	expect.Value(s.Runtime(opts...).Setup(t.Context(), "c1", path))(t)
	expect.Same(t, "recorded", plugins, []record.Plugin{{Type: "main", Kind: "registered"},
		{Type: "disk", Kind: "executable", Path: s.Path("bin", "disk")}, {Type: "own", Kind: "registered"}})
	s.TakeCalls()
	r := s.Runtime(append(opts, cni.WithPlugin("disk", testhost.Fails("DEL", errors.New("another"))))...)
	expect.NoError(t, r.Check(t.Context(), "c1", path))
	expect.NoError(t, r.Remove(t.Context(), "c1", path))
	expect.Same(t, "calls", s.Took(), []string{"CHECK disk c1/eth0", "DEL disk c1/eth0"})
}

// detecting is a built-in plugin whose rules follow the host's backend.
type detecting struct {
	testhost.Acting
	now *string
}

func (d detecting) Detect(context.Context, *netns.Handle, json.RawMessage) (string, error) {
	return *d.now, nil
}

// TestFault_F57_TheDetectedBackendIsTheRecorded: iptables may be installed
// while containers are attached.
func TestFault_F57_TheDetectedBackendIsTheRecorded(t *testing.T) {
	s := testhost.NewStage(t)
	now := netfilter.DetectedNative
	var chosen []string
	own := detecting{testhost.Acting{Every: func(ctx context.Context, verb string, _ *plugin.Request) error {
		chosen = append(chosen, verb+" "+contract.From(ctx).Filters.Detected)
		return nil
	}}, &now}
	r, path := s.Runtime(builtIns(own, nil), testhost.ListOfTypes("net", "p")), s.Container("c1")
	expect.Value(r.Setup(t.Context(), "c1", path))(t)
	now = netfilter.DetectedIPTables
	expect.NoError(t, r.Check(t.Context(), "c1", path))
	expect.NoError(t, r.Remove(t.Context(), "c1", path))
	expect.Same(t, "chosen", take(&chosen), []string{"ADD native", "CHECK native", "DEL native"})
	expect.Value(r.Setup(t.Context(), "c2", s.Container("c2")))(t)
	now = netfilter.DetectedNative
	expect.NoError(t, r.Remove(t.Context(), "c2", ""))
	expect.Same(t, "chosen", take(&chosen), []string{"ADD iptables", "DEL iptables"})
}
