package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/plugin"
)

// fake is a plugin with a test's functions.
type fake struct {
	add   func(*plugin.Request) (*types100.Result, error)
	other func(verb string, r *plugin.Request) error
}

func (f fake) Add(_ context.Context, r *plugin.Request) (*types100.Result, error) { return f.add(r) }
func (f fake) Del(_ context.Context, r *plugin.Request) error                     { return f.other("DEL", r) }
func (f fake) Check(_ context.Context, r *plugin.Request) error                   { return f.other("CHECK", r) }

// whole also has the optional verbs, and supports only some versions.
type whole struct {
	fake
	valid    *[]types.GCAttachment
	versions []string
}

func (w whole) Status(_ context.Context, r *plugin.Request) error { return w.other("STATUS", r) }
func (w whole) GC(_ context.Context, r *plugin.Request, valid []types.GCAttachment) error {
	*w.valid = valid
	return w.other("GC", r)
}
func (w whole) Versions() []string { return w.versions }

func env(netNS string) []string {
	return []string{"CNI_CONTAINERID=c1", "CNI_IFNAME=eth0", "CNI_NETNS=/overwritten", "CNI_NETNS=" + netNS, "CNI_ARGS=A=b;C=d=e", "CNI_PATH=/a:/b"}
}

// call1 is a call of a registered plugin, unless the test changes that.
func call1(p plugin.Plugin, call chain.Call) *execution {
	return &execution{Runner: &Runner{}, call: call, p: Provider{Kind: Registered, plugin: p}}
}

func run1(p plugin.Plugin, verb, netNS, config string) (string, error) {
	out, err := call1(p, chain.Call{Verb: verb, Plugin: "fake", Env: env(netNS), Stdin: []byte(config)}).inProcess(context.Background(), nil)
	return string(out), err
}

// wantError compares an error with an executable's output.
func wantError(t *testing.T, what string, err error, want types.Error) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error, want %+v", what, want)
		return
	}
	if e := (*types.Error)(nil); !errors.As(err, &e) || Said(err) != want {
		t.Errorf("%s:\ngot  %+v\nwant %+v", what, Said(err), want)
	}
}

func oneAddress() *types100.Result {
	return &types100.Result{
		Interfaces: []*types100.Interface{{Name: "eth0", Mac: "02:00:00:00:00:01", Mtu: 1400, Sandbox: "/ns"}},
		IPs: []*types100.IPConfig{
			{Interface: types100.Int(0), Address: net.IPNet{IP: net.IP{10, 0, 0, 2}, Mask: net.CIDRMask(24, 32)}, Gateway: net.IP{10, 0, 0, 1}},
			{Interface: types100.Int(0), Address: net.IPNet{IP: net.ParseIP("fd00::2"), Mask: net.CIDRMask(64, 128)}},
		},
		Routes: []*types.Route{{Dst: net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, GW: net.IP{10, 0, 0, 1}, MTU: 1300}},
		DNS:    types.DNS{Nameservers: []string{"10.0.0.1"}},
	}
}

// printed returns the output of a plugin that uses the CNI project's library.
func printed(t *testing.T, result types.Result, version string) string {
	t.Helper()
	was := os.Stdout
	defer func() { os.Stdout = was }()
	r, w, err := os.Pipe()
	expect.NoError(t, err)
	os.Stdout = w
	expect.NoError(t, errors.Join(types.PrintResult(result, version), w.Close()))
	out, err := io.ReadAll(r)
	expect.NoError(t, errors.Join(err, r.Close()))
	return string(out)
}

func decoded(t *testing.T, data string) (v any) {
	t.Helper()
	err := json.Unmarshal([]byte(data), &v)
	expect.Must(t, err == nil, "%q: %v", data, err)
	return v
}

func TestResultEqualsAnExecutablesInEveryVersion(t *testing.T) {
	p := fake{add: func(*plugin.Request) (*types100.Result, error) { return oneAddress(), nil }}
	for _, v := range append(version.All.SupportedVersions(), "") {
		want := v
		if v == "" {
			want = "0.1.0" // the library prints this version
		}
		out, err := run1(p, "ADD", ownNetNS, fmt.Sprintf(`{"name": "n", "cniVersion": %q}`, v))
		if err != nil {
			t.Errorf("version %q: %v", v, err)
			continue
		}
		expect.Same(t, "version "+v, decoded(t, out), decoded(t, printed(t, oneAddress(), want)))
	}
}

func TestRequestHasAllThatAnExecutableIsTold(t *testing.T) {
	type seen struct {
		ContainerID, IfName, Args, NetNS string
		Path                             []string
		Name, Type, CNIVersion, Config   string
		Prev                             string
		Container                        bool
	}
	var got []seen
	note := func(r *plugin.Request) error {
		s := seen{r.ContainerID, r.IfName, r.Args, r.NetNS, r.Path, r.Name, r.Type, r.CNIVersion, string(r.Config), "", r.Container != nil}
		if r.PrevResult != nil {
			s.Prev = r.PrevResult.Interfaces[0].Name
		}
		got = append(got, s)
		return nil
	}
	p := fake{
		add:   func(r *plugin.Request) (*types100.Result, error) { return oneAddress(), note(r) },
		other: func(_ string, r *plugin.Request) error { return note(r) },
	}
	config := `{"name":"n", "cniVersion":"1.0.0", "x": {"deep": [1.50]}, "prevResult": {"cniVersion":"1.0.0","interfaces":[{"name":"p0"}]}}`
	for _, verb := range []string{"ADD", "CHECK", "DEL"} {
		got = nil
		out, err := run1(p, verb, ownNetNS, config)
		expect.That(t, err == nil && (out != "") == (verb == "ADD"), "%s: %q, %v", verb, out, err)
		want := []seen{{"c1", "eth0", "A=b;C=d=e", ownNetNS, []string{"/a", "/b"}, "n", "fake", "1.0.0", config, "p0", hasNetNS}}
		expect.Same(t, verb, got, want)
	}
}

func TestPreviousResultOfEveryVersion(t *testing.T) {
	var got *types100.Result
	p := fake{other: func(_ string, r *plugin.Request) error { got = r.PrevResult; return nil }}
	for _, v := range version.All.SupportedVersions() {
		prev := printed(t, oneAddress(), v)
		want := expect.Value(types100.NewResultFromResult(expect.Value(version.NewResult(v, []byte(prev)))(t)))(t)
		unsaid := decoded(t, prev).(map[string]any)
		delete(unsaid, "cniVersion")
		without := expect.Value(json.Marshal(unsaid))(t)
		for what, config := range map[string]string{
			"the configuration's version": fmt.Sprintf(`{"name":"n", "cniVersion":%q, "prevResult":%s}`, v, prev),
			"no version":                  fmt.Sprintf(`{"name":"n", "cniVersion":%q, "prevResult":%s}`, v, without),
			"another version":             fmt.Sprintf(`{"name":"n", "cniVersion":"1.1.0", "prevResult":%s}`, prev),
		} {
			got = nil
			if _, err := run1(p, "DEL", "", config); err != nil {
				t.Errorf("%s, %s: %v", v, what, err)
			} else if !reflect.DeepEqual(decoded(t, asJSON(t, got)), decoded(t, asJSON(t, want))) {
				t.Errorf("%s, %s:\ngot  %s\nwant %s", v, what, asJSON(t, got), asJSON(t, want))
			}
		}
	}
	for _, none := range []string{`{"name":"n"}`, `{"name":"n", "prevResult":null}`} {
		got = oneAddress()
		_, err := run1(p, "DEL", "", none)
		expect.That(t, err == nil && got == nil, "%s: %v, %v", none, got, err)
	}
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	return string(expect.Value(json.Marshal(v))(t))
}

func TestPreviousResultThatIsNone(t *testing.T) {
	p := fake{other: func(string, *plugin.Request) error { t.Error("called"); return nil }}
	for prev, want := range map[string]string{
		`7`:                             "prevResult: json: cannot unmarshal number",
		`{"cniVersion":"9.9"}`:          `prevResult: unsupported CNI result version "9.9"`,
		`{"ips":[{"address":""` + `}]}`: "prevResult: ",
	} {
		_, err := run1(p, "DEL", "", fmt.Sprintf(`{"name":"n", "cniVersion":"1.0.0", "prevResult":%s}`, prev))
		expect.That(t, err != nil && Said(err).Code == types.ErrDecodingFailure && strings.HasPrefix(Said(err).Msg, want), "%s: %v", prev, err)
	}
}

func TestVersionsAreNegotiated(t *testing.T) {
	called := 0
	f := fake{
		add:   func(*plugin.Request) (*types100.Result, error) { called++; return oneAddress(), nil },
		other: func(string, *plugin.Request) error { called++; return nil },
	}
	some := whole{f, new([]types.GCAttachment), []string{"0.4.0", "1.0.0"}}
	refusal := func(wanted, supported string) types.Error {
		return types.Error{
			Code: types.ErrIncompatibleCNIVersion, Msg: "incompatible CNI versions",
			Details: fmt.Sprintf("config is %q, plugin supports %s", wanted, supported),
		}
	}
	for _, verb := range []string{"ADD", "DEL", "CHECK", "STATUS", "GC"} {
		for _, v := range some.versions {
			_, err := run1(some, verb, ownNetNS, fmt.Sprintf(`{"name":"n", "cniVersion":%q}`, v))
			expect.That(t, err == nil, "%s %s: %v", verb, v, err)
		}
		called = 0
		_, err := run1(some, verb, ownNetNS, `{"name":"n", "cniVersion":"1.1.0"}`)
		wantError(t, verb, err, refusal("1.1.0", `["0.4.0" "1.0.0"]`))
		_, err = run1(f, verb, ownNetNS, `{"name":"n", "cniVersion":"2.0.0"}`)
		wantError(t, verb, err, refusal("2.0.0", fmt.Sprintf("%q", version.All.SupportedVersions())))
		expect.That(t, called == 0, "%s: called", verb)
	}
}

func TestErrorsKeepTheirCodesAndWords(t *testing.T) {
	own := &types.Error{Code: 11, Msg: "no more addresses", Details: "of 4"}
	cause := errors.New("cause")
	for _, tt := range []struct {
		err  error
		want types.Error
	}{
		{own, *own},
		{fmt.Errorf("delegate: %w", own), types.Error{Code: 11, Msg: "delegate: no more addresses", Details: "of 4"}},
		{fmt.Errorf("delegate: %w, sorry", own), types.Error{Code: 11, Msg: "delegate: no more addresses; of 4, sorry"}},
		{plugin.Errorf(101, "own: %w", cause), types.Error{Code: 101, Msg: "own: cause"}},
		{plugin.Errorf(101, "own: %w", own), types.Error{Code: 101, Msg: "own: no more addresses; of 4"}},
		{cause, types.Error{Code: 999, Msg: "cause"}},
		{errors.Join(cause, own), types.Error{Code: 11, Msg: "cause\nno more addresses", Details: "of 4"}},
		{errors.Join(own, cause), types.Error{Code: 11, Msg: "no more addresses; of 4\ncause"}},
	} {
		p := fake{
			add:   func(*plugin.Request) (*types100.Result, error) { return oneAddress(), tt.err },
			other: func(string, *plugin.Request) error { return tt.err },
		}
		for _, verb := range []string{"ADD", "DEL", "CHECK"} {
			out, err := run1(p, verb, ownNetNS, `{"name":"n", "cniVersion":"1.0.0"}`)
			wantError(t, verb, err, tt.want)
			expect.That(t, errors.Is(err, tt.err) && out == "", "%s: %q, %v", verb, out, err)
		}
	}
}

func TestSaidOfAnErrorWithoutACode(t *testing.T) {
	if got, want := Said(errors.New("x")), (types.Error{Code: 999, Msg: "x"}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestGoroutineIsThePluginsOwn: a plugin that ends its goroutine ends no other.
func TestGoroutineIsThePluginsOwn(t *testing.T) {
	p := fake{other: func(string, *plugin.Request) error { runtime.Goexit(); return nil }}
	_, err := run1(p, "DEL", "", `{"name":"n", "cniVersion":"1.0.0"}`)
	wantError(t, "DEL", err, types.Error{Code: 999, Msg: `plugin "fake" ended its goroutine`})
}

func TestResultThatIsNone(t *testing.T) {
	p := fake{add: func(*plugin.Request) (*types100.Result, error) { return nil, nil }}
	out, err := run1(p, "ADD", ownNetNS, `{"name":"n", "cniVersion":"1.0.0"}`)
	wantError(t, "ADD", err, types.Error{Code: 999, Msg: `plugin "fake" returned no result`})
	expect.Same(t, "printed", out, "")
}

func TestCallsThatAreNotComplete(t *testing.T) {
	p := fake{other: func(string, *plugin.Request) error { t.Error("called"); return nil }}
	complete := chain.Call{Plugin: "fake", Env: env(ownNetNS), Stdin: []byte(`{"name":"n", "cniVersion":"1.0.0"}`)}
	for _, tt := range []struct {
		verb string
		env  []string
		conf string
		want types.Error
	}{
		{verb: "ADD", env: []string{}, want: types.Error{Code: 4, Msg: `ADD of plugin "fake" without CNI_CONTAINERID, CNI_NETNS, CNI_IFNAME`}},
		{verb: "CHECK", env: env(""), want: types.Error{Code: 4, Msg: `CHECK of plugin "fake" without CNI_NETNS`}},
		{verb: "DEL", env: []string{"CNI_CONTAINERID=c1"}, want: types.Error{Code: 4, Msg: `DEL of plugin "fake" without CNI_IFNAME`}},
		{verb: "add", want: types.Error{Code: 4, Msg: `unknown CNI_COMMAND "add"`}},
		{verb: "DEL", conf: `{}`, want: types.Error{Code: 7, Msg: `configuration of plugin "fake" has no network name`}},
		{verb: "DEL", conf: `[]`, want: types.Error{Code: 6, Msg: `configuration of plugin "fake": ` +
			json.Unmarshal([]byte(`[]`), &struct {
				Name       string          `json:"name"`
				CNIVersion string          `json:"cniVersion"`
				PrevResult json.RawMessage `json:"prevResult"`
			}{}).Error()}},
	} {
		c := complete
		c.Verb = tt.verb
		if tt.env != nil {
			c.Env = tt.env
		}
		if tt.conf != "" {
			c.Stdin = []byte(tt.conf)
		}
		wantError(t, tt.verb, expect.Err(call1(p, c).inProcess(context.Background(), nil)), tt.want)
	}
}

// TestAPluginInProcessIsNotStartedWhenItsContextHasEnded: built-in plugins rely
// on that and do not check their context first.
func TestAPluginInProcessIsNotStartedWhenItsContextHasEnded(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	stops := errors.New("the daemon stops")
	cancel(stops)
	for _, kind := range []Kind{BuiltIn, Registered} {
		_, err := (&execution{call: chain.Call{Verb: "ADD"}, p: Provider{Kind: kind}}).run(ctx)
		expect.That(t, err != nil && err.Error() == "not started: the daemon stops" && errors.Is(err, stops), "%v: got %v", kind, err)
	}
}
