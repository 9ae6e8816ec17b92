package chain

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

func TestParseObjectKeepsValuesAndOrder(t *testing.T) {
	for name, test := range map[string]struct{ in, want, err string }{
		"order":                {in: `{"z": 1, "a": 2}`, want: `{"z":1,"a":2}`},
		"bytes of values":      {in: `{"n": 9007199254740993, "f": 1.50, "e": 1E400, "s": "<&>é\u0041", "o": { "b" : [ 1,2 ] }}`, want: `{"n":9007199254740993,"f":1.50,"e":1E400,"s":"<&>é\u0041","o":{ "b" : [ 1,2 ] }}`},
		"last of equal keys":   {in: `{"a": 1, "b": 2, "\u0061": 3}`, want: `{"a":3,"b":2}`},
		"key that needs quote": {in: `{"a\"b\n": 1}`, want: `{"a\"b\n":1}`},
		"empty":                {in: ` {} `, want: `{}`},
		"nested":               {in: "{\"a\" :\t{\"b\":[{},\"]}\\\"\"]} ,\n\"c\":[ ]\r}", want: `{"a":{"b":[{},"]}\""]},"c":[ ]}`},
		"null":                 {in: `null`, want: `{}`},
		"array":                {in: `[]`, err: "not a JSON object"},
		"string":               {in: `"{}"`, err: "not a JSON object"},
		"nothing":              {in: ``, want: `{}`},
		"half":                 {in: `{"a": 1`, err: "unexpected end"},
		"half a value":         {in: `{"a": [1,`, err: "unexpected end"},
		"no value":             {in: `{"a": }`, err: "invalid character"},
		"key a number":         {in: `{1: 2}`, err: "invalid character"},
	} {
		o, err := parseObject([]byte(test.in))
		if test.err != "" {
			expect.That(t, err != nil && strings.Contains(err.Error(), test.err), "%s: error %v, want one with %q", name, err, test.err)
			continue
		}
		expect.Same(t, name, text(t, o, err), test.want)
	}
}

// text returns an object in its encoded form.
func text(t testing.TB, o object, err error) string {
	t.Helper()
	expect.NoError(t, err)
	return string(o.bytes())
}

// request derives a request from a plugin's configuration and the runtime's
// additions.
func request(t testing.TB, config, added string, configArgs map[string]any) (string, error) {
	t.Helper()
	a, err := parseObject([]byte(added))
	expect.NoError(t, err)
	data, err := derive([]byte(config), a, configArgs)
	return string(data), err
}

func wantRequest(t *testing.T, config, added string, configArgs map[string]any, want string) {
	t.Helper()
	got, err := request(t, config, added, configArgs)
	if err != nil {
		t.Errorf("%s: %v", config, err)
	} else if got != want {
		t.Errorf("request %s\nwant    %s", got, want)
	}
}

// TestDuty_R11_RuntimesKeysOfAFileAreDropped in any case: a plugin in Go reads
// RUNTIMECONFIG as runtimeConfig.
func TestDuty_R11_RuntimesKeysOfAFileAreDropped(t *testing.T) {
	for _, forged := range []string{
		"runtimeConfig", "RuntimeConfig", "RUNTIMECONFIG", "cni.dev/valid-attachments", "cni.dev/", "CNI.dev/x", `runtime\u0043onfig`,
	} {
		wantRequest(t, `{"type": "x", "`+forged+`": {"mac": "00:00:00:00:00:01"}, "keep": 1}`, `{"name": "net"}`, nil,
			`{"type":"x","keep":1,"name":"net"}`)
	}
	wantRequest(t, `{"type": "x", "runtimeConfig": {"mac": "1"}}`, `{"runtimeConfig": {"mac": "2"}}`, nil,
		`{"type":"x","runtimeConfig":{"mac": "2"}}`)
	wantRequest(t, `{"type": "x", "cni.development": 1, "runtimeConfigs": 2, "cni": {"dev/": 3}}`, `{}`, nil,
		`{"type":"x","cni.development":1,"runtimeConfigs":2,"cni":{"dev/": 3}}`)
}

// TestDuty_R38_CapabilitiesAreNotPassed to the plugin.
func TestDuty_R38_CapabilitiesAreNotPassed(t *testing.T) {
	for _, key := range []string{"capabilities", "Capabilities"} {
		wantRequest(t, `{"type": "x", "`+key+`": {"mac": true}}`, `{"name": "net"}`, nil, `{"type":"x","name":"net"}`)
	}
}

// TestDuty_R39_ResultInAFileIsDropped: the first ADD has no prevResult, and
// later ones have the runtime's.
func TestDuty_R39_ResultInAFileIsDropped(t *testing.T) {
	for _, key := range []string{"prevResult", "PREVRESULT", "prevReſult"} {
		const forged = `{"type": "x", "%": {"ips": [{"address": "10.0.0.1/8"}]}}`
		wantRequest(t, strings.Replace(forged, "%", key, 1), `{"name": "net"}`, nil, `{"type":"x","name":"net"}`)
		wantRequest(t, strings.Replace(forged, "%", key, 1), `{"prevResult": {"ips": []}}`, nil, `{"type":"x","prevResult":{"ips": []}}`)
	}
}

// TestDuty_R45_ArgsAreMerged: the caller's args.cni override the file's, and
// nothing else in args changes.
func TestDuty_R45_ArgsAreMerged(t *testing.T) {
	given := map[string]any{"ips": []string{"10.1.2.3"}, "labels": []map[string]string{{"key": "app", "value": "<&>"}}}
	const labels = `[{"key":"app","value":"\u003c\u0026\u003e"}]`
	for name, test := range map[string]struct{ config, want string }{
		"none in the file":   {`{"type":"x"}`, `{"type":"x","args":{"cni":{"ips":["10.1.2.3"],"labels":` + labels + `}}}`},
		"others in the file": {`{"args":{"org":{"n":9007199254740993},"cni":{"ips":["1.1.1.1"],"z":9007199254740993}}}`, `{"args":{"org":{"n":9007199254740993},"cni":{"ips":["10.1.2.3"],"z":9007199254740993,"labels":` + labels + `}}}`},
		"null in the file":   {`{"args":null,"type":"x"}`, `{"args":{"cni":{"ips":["10.1.2.3"],"labels":` + labels + `}},"type":"x"}`},
		"null args.cni":      {`{"args":{"cni":null}}`, `{"args":{"cni":{"ips":["10.1.2.3"],"labels":` + labels + `}}}`},
	} {
		t.Run(name, func(t *testing.T) { wantRequest(t, test.config, `{}`, given, test.want) })
	}
	wantRequest(t, `{"args":  {"cni": 1}}`, `{}`, nil, `{"args":{"cni": 1}}`)
	for config, want := range map[string]string{
		`{"args": "text"}`:        "args: not a JSON object",
		`{"args": {"cni": [1]}}`:  "args.cni: not a JSON object",
		`{"args": {"cni": "xx"}}`: "args.cni: not a JSON object",
	} {
		got, err := request(t, config, `{}`, given)
		expect.That(t, err != nil && err.Error() == want, "%s: %s, %v; want error %q", config, got, err, want)
	}
	got, err := request(t, `{}`, `{}`, map[string]any{"f": func() {}})
	expect.That(t, err != nil, "a value that is no JSON made %s", got)
}

// TestDeriveLeavesTheConfigurationAlone: all containers share it.
func TestDeriveLeavesTheConfigurationAlone(t *testing.T) {
	const config = `{"type":"x","capabilities":{"a":true},"args":{"cni":{}},"prevResult":{}}`
	c := []byte(config)
	expect.NoError(t, expect.Err(derive(c, object{{"name", json.RawMessage(`"net"`)}, {"type", json.RawMessage(`"y"`)}}, map[string]any{"k": 1})))
	expect.That(t, string(c) == config, "it became %s", c)
}

// TestWithoutAddresses: only the given addresses go, and a request that has none of them
// stays to the byte.
func TestWithoutAddresses(t *testing.T) {
	const request = `{"b": 1, "prevResult": {"ips": [{"address": "10.1.0.2/24"}, {"address": "fd00::2/64"}, {"gateway": "10.1.0.1"}], "x": 2}}`
	for what, test := range map[string]struct{ request, taken, want string }{
		"one of them": {request, "10.1.0.2", `{"b":1,"prevResult":{"ips":[{"address":"fd00::2/64"},{"gateway":"10.1.0.1"}],"x":2}}`},
		"another":     {request, "10.1.0.3", request},
		"no result":   {`{ "b": 1 }`, "10.1.0.2", `{ "b": 1 }`},
		"no address":  {`{"prevResult": {"x": 2}}`, "10.1.0.2", `{"prevResult": {"x": 2}}`},
	} {
		whole := Call{Stdin: []byte(test.request), Parsed: &Parsed{}}
		got, err := whole.WithoutAddresses([]netip.Addr{netip.MustParseAddr(test.taken)})
		expect.That(t, err == nil && string(got.Stdin) == test.want, "%s: got %s, %v", what, got.Stdin, err)
		expect.Same(t, what+": the decoded result is kept", got.Parsed != nil, test.want == test.request)
	}
}
