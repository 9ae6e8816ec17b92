package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"testing"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/internal/run/runner"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/outcome"
	"github.com/embedcni/cni/plugin"
)

// comparer is a built-in plugin that compares with a test's function.
type comparer func(ctx context.Context) ([]contract.Difference, error)

func (comparer) Add(context.Context, *plugin.Request) (*types100.Result, error) { return nil, nil }
func (comparer) Del(context.Context, *plugin.Request) error                     { return nil }
func (comparer) Check(context.Context, *plugin.Request) error                   { return nil }
func (c comparer) Compare(ctx context.Context, _ *plugin.Request, _ *contract.View) ([]contract.Difference, error) {
	return c(ctx)
}

// bracketed is an attachment whose errors are those of a difference, in brackets.
type bracketed struct{ runner.Attachment }

func (bracketed) Durable() error              { return nil }
func (bracketed) Fail(f runner.Failure) error { return fmt.Errorf("[%s %w]", f.Plugin, f.Err) }

// compareWith compares an attachment of the plugins in a configuration. Those with an
// entry in builtIn are compared; those of "executable" were attached by one.
func compareWith(t *testing.T, version, ifName, plugins string, builtIn map[string]comparer) (*comparison, error) {
	t.Helper()
	list := expect.Value(conflist.Parse([]byte(`{"cniVersion": "` + version + `", "name": "net", "plugins": [` + plugins + `]}`)))(t)
	r := &runner.Runner{
		Runtime: &runner.Runtime{
			Choice: runner.Choice{BuiltIn: func(typ string) plugin.Plugin {
				if p, ok := builtIn[typ]; ok {
					return p
				}
				return nil
			}},
			Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		},
		Plugins: &runner.Plugins{}, Network: list, Attachment: bracketed{},
		Given: contract.Given{Record: contract.From(context.Background()).Record},
	}
	var all []record.Plugin
	for typ := range builtIn {
		all = append(all, record.Plugin{Type: typ, Kind: record.KindBuiltIn})
	}
	r.Plugins.Reset(all, nil)
	host := expect.Value(netns.Current())(t)
	v := expect.Value((&contract.Looks{}).Open(nil, host, host))(t)
	defer func() { expect.NoError(t, v.Close(), host.Close()) }()
	c := &comparing{
		params:        &chain.Attachment{RuntimeConf: libcni.RuntimeConf{ContainerID: "c1", NetNS: "/proc/self/ns/net", IfName: ifName}},
		chain:         &chain.Chain{List: list},
		result:        chain.Partial(`{"cniVersion": "` + version + `", "interfaces": []}`),
		runner:        r,
		madeInterface: true,
		view:          v,
	}
	return c.run(t.Context())
}

func finds(all ...contract.Difference) comparer {
	return func(context.Context) ([]contract.Difference, error) { return all, nil }
}

// lines renders a comparison.
func lines(p *comparison) (all []string) {
	for _, d := range p.differences {
		all = append(all, fmt.Sprintf("%s %s %s: %v", d.Plugin, d.Kind, d.Object, d.Err))
	}
	for i := range 8 {
		if p.asks[i] {
			all = append(all, fmt.Sprint("asks ", i))
		}
	}
	for _, typ := range p.uncompared {
		all = append(all, "uncompared "+typ)
	}
	if p.err != nil {
		all = append(all, "error "+p.err.Error())
	}
	return all
}

func TestCompare(t *testing.T) {
	wrong := errors.New("wrong")
	rule := contract.Difference{Kind: contract.Rule, Object: "r", Err: wrong}
	setting := contract.Difference{Kind: contract.Sysctl, Object: "s"} // CHECK passes over it
	gone := contract.Difference{Kind: contract.Interface, Inside: true, Object: "nosuch0", Err: wrong}
	const settingLine = `one sysctl s: [one network "net", interface lo, plugin one: sysctl s is missing (not repairable: adding something does not put it right)]`
	const goneLine = `one interface nosuch0: interface nosuch0 of network "net" is gone: not attached`
	for name, tt := range map[string]struct {
		version, ifName, plugins string
		builtIn                  map[string]comparer
		want                     []string
	}{
		"whole":                     {"1.0.0", "lo", `{"type": "one"}`, map[string]comparer{"one": finds()}, nil},
		"differences, in order":     {"1.0.0", "lo", `{"type": "one"}, {"type": "two"}`, map[string]comparer{"one": finds(rule), "two": finds(rule)}, []string{"one rule r: [one wrong]", "two rule r: [two wrong]"}},
		"a setting alone":           {"1.0.0", "lo", `{"type": "one"}`, map[string]comparer{"one": finds(setting)}, []string{settingLine}},
		"a setting and a rule":      {"1.0.0", "lo", `{"type": "one"}`, map[string]comparer{"one": finds(setting, rule)}, []string{settingLine, "one rule r: [one wrong]"}},
		"of its IPAM plugin":        {"1.0.0", "lo", `{"type": "one", "ipam": {"type": "two"}}`, map[string]comparer{"one": finds(), "two": finds(rule)}, []string{"two rule r: [two wrong]"}},
		"another program's":         {"1.0.0", "lo", `{"type": "one"}, {"type": "x"}`, map[string]comparer{"one": finds()}, []string{"asks 1", "uncompared x"}},
		"another's, with IPAM":      {"1.0.0", "lo", `{"type": "x", "ipam": {"type": "two"}}`, map[string]comparer{"two": finds(rule)}, []string{"asks 0", "uncompared x", "uncompared two"}},
		"with IPAM of another's":    {"1.0.0", "lo", `{"type": "one", "ipam": {"type": "x"}}`, map[string]comparer{"one": finds(rule)}, []string{"one rule r: [one wrong]", "asks 0", "uncompared x"}},
		"a result without details":  {"0.2.0", "lo", `{"type": "one"}`, map[string]comparer{"one": finds(rule)}, []string{"asks 0", "uncompared one"}},
		"its interface is gone":     {"1.0.0", "nosuch0", `{"type": "one"}, {"type": "x"}`, map[string]comparer{"one": finds(rule)}, []string{goneLine, "one rule r: [one wrong]"}},
		"the plugin says so too":    {"1.0.0", "nosuch0", `{"type": "one"}`, map[string]comparer{"one": finds(gone)}, []string{goneLine}},
		"a comparison that fails":   {"1.0.0", "lo", `{"type": "one"}, {"type": "two"}`, map[string]comparer{"one": func(context.Context) ([]contract.Difference, error) { return nil, wrong }, "two": finds(rule)}, []string{"two rule r: [two wrong]", "error [one not compared: wrong]"}},
		"comparisons that fail":     {"1.0.0", "lo", `{"type": "one"}, {"type": "one"}`, map[string]comparer{"one": func(context.Context) ([]contract.Difference, error) { return nil, wrong }}, []string{"error [one not compared: wrong]; [one not compared: wrong]"}},
		"nothing is asked if it is": {"1.0.0", "nosuch0", `{"type": "x"}`, nil, []string{`x interface nosuch0: interface nosuch0 of network "net" is gone: not attached`}},
	} {
		t.Run(name, func(t *testing.T) {
			p := expect.Value(compareWith(t, tt.version, tt.ifName, tt.plugins, tt.builtIn))(t)
			expect.Same(t, "names", p.network+" "+p.ifName, "net "+tt.ifName)
			expect.Same(t, "part", lines(p), tt.want)
		})
	}
}

// TestTheMissingInterfaceIsNotAttached, for callers.
func TestTheMissingInterfaceIsNotAttached(t *testing.T) {
	p := expect.Value(compareWith(t, "1.0.0", "nosuch0", `{"type": "one"}`, nil))(t)
	expect.Is(t, p.differences[0].Err, outcome.ErrNotAttached)
}

// TestAComparisonNotesNothing: it may read notes.
func TestAComparisonNotesNothing(t *testing.T) {
	_, err := compareWith(t, "1.0.0", "lo", `{"type": "one"}`, map[string]comparer{"one": func(ctx context.Context) ([]contract.Difference, error) {
		r := contract.From(ctx).Record
		expect.Is(t, r.Note("one.key", 1), errReadOnly)
		expect.Same(t, "fact", r.Fact("one.key"), json.RawMessage(nil))
		return nil, nil
	}})
	expect.NoError(t, err)
}

func TestUnjudgedUnlessAsked(t *testing.T) {
	p := &comparison{uncompared: []string{"x"}}
	expect.Same(t, "not asked", p.unjudged(), []string{"x"})
	p.asked.done = true
	expect.Same(t, "asked", p.unjudged(), nil)
}

func TestOnlyDifferencesOnTheHostAreRepairable(t *testing.T) {
	fix := func(context.Context) error { return nil }
	for _, tt := range []struct {
		d    contract.Difference
		want bool
	}{{contract.Difference{Fix: fix}, true}, {contract.Difference{Fix: fix, Inside: true}, false}, {contract.Difference{}, false}} {
		c := &examined{parts: []*comparison{{}, {differences: []contract.Difference{tt.d}}}}
		expect.Same(t, "repairable", c.isRepairable(), tt.want)
	}
}
