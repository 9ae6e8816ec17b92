package runner

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

// comparer is a built-in plugin that compares with a test's function.
type comparer struct {
	compare func(ctx context.Context, r *plugin.Request) ([]contract.Difference, error)
}

func (comparer) Add(context.Context, *plugin.Request) (*types100.Result, error) { return nil, nil }
func (comparer) Del(context.Context, *plugin.Request) error                     { return nil }
func (comparer) Check(context.Context, *plugin.Request) error                   { return nil }
func (c comparer) Compare(ctx context.Context, r *plugin.Request, _ *contract.View) ([]contract.Difference, error) {
	return c.compare(ctx, r)
}

// durable is an attachment whose record is on the disk.
type durable struct{ Attachment }

func (durable) Durable() error { return nil }

// comparing returns a Runner with the built-in plugins "ours", which compares, and
// "silent", which does not.
func comparing(ours func(context.Context, *plugin.Request) ([]contract.Difference, error), recorded ...record.Plugin) *Runner {
	r := &Runner{
		Runtime: &Runtime{
			Choice: Choice{
				BuiltIn: func(typ string) plugin.Plugin {
					switch typ {
					case "ours":
						return comparer{ours}
					case "silent":
						return struct{ plugin.Plugin }{}
					}
					return nil
				},
				Registered: map[string]plugin.Plugin{},
			},
			Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		},
		Plugins: &Plugins{}, Network: &libcni.NetworkConfigList{Name: "net"}, Attachment: durable{},
	}
	r.Plugins.Reset(recorded, nil)
	return r
}

// here is a view of the namespace of this process.
func here(t *testing.T) *contract.View {
	t.Helper()
	host := expect.Value(netns.Current())(t)
	v := expect.Value((&contract.Looks{}).Open(nil, host, host))(t)
	t.Cleanup(func() { expect.NoError(t, v.Close(), host.Close()) })
	return v
}

func checkCall(typ string) chain.Call {
	return chain.Call{
		Verb: "CHECK", Plugin: typ, Stdin: []byte(`{"cniVersion": "1.0.0", "name": "net", "type": "` + typ + `"}`),
		Env: []string{"CNI_CONTAINERID=c1", "CNI_IFNAME=eth0", "CNI_NETNS=/proc/self/ns/net"},
	}
}

// TestWhoCompares: the built-in plugin of the type, for itself and for an executable,
// but not for a plugin of the caller's.
func TestWhoCompares(t *testing.T) {
	for what, tt := range map[string]struct {
		typ        string
		recorded   []record.Plugin
		registered bool
		ok         bool
		filters    string
	}{
		"built in":                        {"ours", []record.Plugin{{Type: "ours", Kind: record.KindBuiltIn, Backend: "native"}}, false, true, "native"},
		"an executable":                   {"ours", []record.Plugin{{Type: "ours", Kind: record.KindExecutable}}, false, true, "any form"},
		"the delegate of an executable":   {"ours", []record.Plugin{{Type: "other", Kind: record.KindExecutable}}, false, true, "any form"},
		"an earlier version":              {"ours", nil, false, true, "any form"},
		"registered":                      {"ours", []record.Plugin{{Type: "ours", Kind: record.KindRegistered}}, false, false, ""},
		"an earlier version's, or ours":   {"ours", nil, true, false, ""},
		"built in, registered since":      {"ours", []record.Plugin{{Type: "ours", Kind: record.KindBuiltIn}}, true, true, ""},
		"a built-in one that does not":    {"silent", nil, false, false, ""},
		"a type that nobody has built in": {"strange", []record.Plugin{{Type: "strange", Kind: record.KindExecutable}}, false, false, ""},
	} {
		t.Run(what, func(t *testing.T) {
			filters := ""
			r := comparing(func(ctx context.Context, r *plugin.Request) ([]contract.Difference, error) {
				f := contract.From(ctx).Filters
				if filters = f.Detected; f.Executable {
					filters = "any form"
				}
				if r.ContainerID != "c1" || r.IfName != "eth0" || r.Container == nil {
					t.Errorf("request %+v", r)
				}
				if _, err := r.Delegate(ctx, "CHECK", "host-local", nil); err != nil {
					t.Errorf("delegate: %v", err)
				}
				return []contract.Difference{{Kind: contract.Rule, Object: "x"}}, nil
			}, tt.recorded...)
			if tt.registered {
				r.Runtime.Registered[tt.typ] = comparer{}
			}
			found, ok, err := r.Compare(t.Context(), checkCall(tt.typ), here(t))
			expect.NoError(t, err)
			expect.Same(t, "compared", ok, tt.ok)
			expect.Same(t, "filters", filters, tt.filters)
			var want []contract.Difference
			if tt.ok {
				want = []contract.Difference{{Plugin: tt.typ, Kind: contract.Rule, Object: "x"}}
			}
			expect.Same(t, "differences", found, want)
		})
	}
}

// TestAComparisonThatFails keeps the program alive, and says why.
func TestAComparisonThatFails(t *testing.T) {
	broken := errors.New("broken")
	for what, compares := range map[string]func(context.Context, *plugin.Request) ([]contract.Difference, error){
		"broken":           func(context.Context, *plugin.Request) ([]contract.Difference, error) { return nil, broken },
		"panicked: broken": func(context.Context, *plugin.Request) ([]contract.Difference, error) { panic(broken) },
	} {
		_, ok, err := comparing(compares).Compare(t.Context(), checkCall("ours"), here(t))
		expect.That(t, ok && err != nil && strings.Contains(err.Error(), what), "got %v, %v; want %s", ok, err, what)
	}
	call := checkCall("ours")
	call.Stdin = []byte(`{`)
	_, ok, err := comparing(nil).Compare(t.Context(), call, here(t))
	expect.That(t, ok && err != nil, "got %v, %v for a request that is none", ok, err)
}
