package conflist_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/store/conflist"
)

// parsed holds the compared parts of a list.
type parsed struct {
	Name, Version           string
	DisableCheck, DisableGC bool
	Types                   []string
	Plugins                 []string // bytes
}

func summary(list *libcni.NetworkConfigList) parsed {
	p := parsed{Name: list.Name, Version: list.CNIVersion, DisableCheck: list.DisableCheck, DisableGC: list.DisableGC}
	for _, plugin := range list.Plugins {
		p.Types = append(p.Types, plugin.Network.Type)
		p.Plugins = append(p.Plugins, string(plugin.Bytes))
	}
	return p
}

func TestParseKeepsEveryPluginToTheByte(t *testing.T) {
	const first = `{ "type":"bridge",  "vlan": 9007199254740993, "f": 1.50, "e": 1E+2 }`
	const second = "{\"type\" : \"tuning\",\n\t\"text\": \"<&>\\u0041é\", \"dup\": 1, \"dup\": 2, \"nested\": {\"z\": 1, \"a\": [18446744073709551616]}}"
	const list = `{"cniVersion": "1.0.0", "name": "net", "disableCheck": true, "disableGC": "true", "plugins": [` +
		first + " , " + second + `]}`
	got := expect.Value(conflist.Parse([]byte(list)))(t)
	want := parsed{
		Name: "net", Version: "1.0.0", DisableCheck: true, DisableGC: true, Types: []string{"bridge", "tuning"},
		Plugins: []string{first, second},
	}
	expect.Same(t, "summary", summary(got), want)
	expect.That(t, string(got.Bytes) == list, "the list's own bytes became %s", got.Bytes)
}

func TestParseSingleMakesAListOfOne(t *testing.T) {
	const conf = "\n{\"type\": \"bridge\", \"name\": \"net\", \"cniVersion\": \"0.4.0\", \"disableCheck\": true, \"big\": 9007199254740993}\n"
	got := expect.Value(conflist.ParseSingle([]byte(conf)))(t)
	want := parsed{
		Name: "net", Version: "0.4.0", DisableCheck: true,
		Types: []string{"bridge"}, Plugins: []string{strings.TrimSpace(conf)},
	}
	expect.Same(t, "summary", summary(got), want)
	var again map[string]any
	if err := json.Unmarshal(got.Bytes, &again); err != nil {
		t.Errorf("the list that was made is not JSON: %v: %s", err, got.Bytes)
	}
}

// TestDuty_R12_HighestCommonVersion: the highest known version of cniVersion
// and cniVersions is chosen, in a list and in a single plugin's configuration.
func TestDuty_R12_HighestCommonVersion(t *testing.T) {
	for name, test := range map[string]struct{ keys, want, err string }{
		"none":                    {keys: ``, want: ""},
		"empty":                   {keys: `"cniVersion": "",`, want: ""},
		"one":                     {keys: `"cniVersion": "0.3.1",`, want: "0.3.1"},
		"many":                    {keys: `"cniVersions": ["0.3.1", "1.0.0", "0.4.0"],`, want: "1.0.0"},
		"one above many":          {keys: `"cniVersion": "1.1.0", "cniVersions": ["0.3.1", "1.0.0"],`, want: "1.1.0"},
		"one below many":          {keys: `"cniVersion": "0.3.1", "cniVersions": ["1.1.0", "1.0.0"],`, want: "1.1.0"},
		"many above what we know": {keys: `"cniVersion": "1.0.0", "cniVersions": ["1.0.0", "1.2.0", "2.0.0"],`, want: "1.0.0"},
		"many between what we know": {
			keys: `"cniVersions": ["1.0.0", "1.0.9"],`, want: "1.0.0",
		},
		"one above what we know": {keys: `"cniVersion": "7.0.0", "cniVersions": ["0.4.0"],`, want: "0.4.0"},
		"empty list":             {keys: `"cniVersion": "0.4.0", "cniVersions": [],`, want: "0.4.0"},
		"unknown one":            {keys: `"cniVersion": "1.2.0",`, err: "no version of 1.2.0 is known here"},
		"unknown many":           {keys: `"cniVersions": ["1.2.0", "3.0.0"],`, err: "no version of 1.2.0, 3.0.0 is known here"},
		"not a version":          {keys: `"cniVersion": "newest",`, err: "no version of newest is known here"},
		"number":                 {keys: `"cniVersion": 1,`, err: "error parsing configuration"},
		"many a string":          {keys: `"cniVersions": "1.0.0",`, err: "error parsing configuration"},
		"many with a number":     {keys: `"cniVersions": [1],`, err: "error parsing configuration"},
	} {
		t.Run(name, func(t *testing.T) {
			list, err := conflist.Parse([]byte(`{` + test.keys + `"name": "net", "plugins": [{"type": "x"}]}`))
			wantVersion(t, "list", list, err, test.want, test.err)
			single, err := conflist.ParseSingle([]byte(`{` + test.keys + `"name": "net", "type": "x"}`))
			wantVersion(t, "single", single, err, test.want, test.err)
		})
	}
}

func wantVersion(t *testing.T, kind string, list *libcni.NetworkConfigList, err error, want, wantErr string) {
	t.Helper()
	switch {
	case wantErr != "":
		expect.Says(t, kind, err, wantErr)
	case err != nil:
		t.Errorf("%s: %v", kind, err)
	case list.CNIVersion != want:
		t.Errorf("%s: version %q, want %q", kind, list.CNIVersion, want)
	}
}

// TestDuty_R5_PluginTypeIsAFileName: neither the plugin's type nor its IPAM
// plugin's may name a file in another directory.
func TestDuty_R5_PluginTypeIsAFileName(t *testing.T) {
	for _, typ := range []string{"/bin/sh", "../sh", "a/b", `a\\b`, "..", ".", `a\u0000`, `\u002fbin\u002fsh`} {
		for where, plugin := range map[string]string{
			"type":                    `{"type": "` + typ + `"}`,
			"ipam.type":               `{"type": "x", "ipam": {"type": "` + typ + `"}}`,
			"type under another case": `{"type": "` + typ + `", "TYPE": "x"}`,
			"type over another case":  `{"TYPE": "x", "type": "` + typ + `"}`,
			"other case only":         `{"Type": "` + typ + `"}`,
			"ipam under another case": `{"type": "x", "ipam": {"type": "` + typ + `"}, "IPAM": {"type": "y"}}`,
			"twice":                   `{"type": "x", "type": "` + typ + `"}`,
		} {
			list, err := conflist.Parse([]byte(`{"name": "net", "plugins": [{"type": "ok"}, ` + plugin + `]}`))
			if err == nil {
				t.Errorf("%s: list accepts %s; would run %q", where, plugin, list.Plugins[1].Network.Type)
			}
			single := `{"name": "net",` + strings.TrimPrefix(plugin, "{")
			expect.Fails(t, where+": single accepts "+single, expect.Err(conflist.ParseSingle([]byte(single))))
		}
	}
	for _, typ := range []string{"bridge", "a.b", "...", "a b", "ü", "host-local", "x.exe"} {
		_, err := conflist.Parse([]byte(`{"name": "net", "plugins": [{"type": "` + typ + `"}]}`))
		expect.That(t, err == nil, "%q: %v", typ, err)
	}
}

func TestParseNamesTheMistake(t *testing.T) {
	for name, test := range map[string]struct{ list, err string }{
		"empty":              {``, "error parsing configuration list: unexpected end of JSON input"},
		"not JSON":           {`cniVersion: 1.0.0`, "error parsing configuration list: invalid character"},
		"array":              {`[]`, "error parsing configuration list: json: cannot unmarshal array"},
		"null":               {`null`, "error parsing configuration list: no name"},
		"text after it":      {`{"name": "net", "plugins": [{"type": "x"}]} x`, "error parsing configuration list: invalid character 'x' after"},
		"no name":            {`{"plugins": [{"type": "x"}]}`, "error parsing configuration list: no name"},
		"name a number":      {`{"name": 1, "plugins": [{"type": "x"}]}`, "error parsing configuration list: invalid name type float64"},
		"no plugins in it":   {`{"name": "net", "plugins": []}`, "error parsing configuration list: no plugins in list"},
		"plugins null":       {`{"name": "net", "plugins": null}`, "error parsing configuration list: invalid 'plugins' type <nil>"},
		"plugins an object":  {`{"name": "net", "plugins": {}}`, "error parsing configuration list: invalid 'plugins' type"},
		"plugin null":        {`{"name": "net", "plugins": [null]}`, "missing 'type'"},
		"plugin a string":    {`{"name": "net", "plugins": ["x"]}`, "error parsing configuration: json: cannot unmarshal string"},
		"no type":            {`{"name": "net", "plugins": [{"type": "x"}, {}]}`, "plugin config 1: error parsing configuration: missing 'type'"},
		"type a number":      {`{"name": "net", "plugins": [{"type": 1}]}`, "error parsing configuration: json: cannot unmarshal number"},
		"only inlined, none": {`{"name": "net", "loadOnlyInlinedPlugins": true}`, "`loadOnlyInlinedPlugins` is true, and no 'plugins' key"},
		"disableCheck":       {`{"name": "net", "disableCheck": 1, "plugins": [{"type": "x"}]}`, "invalid type float64 for disableCheck"},
		"name and type":      {`{"name": "-", "plugins": [{"type": "a/b"}]}`, "invalid characters found in network name; -; plugin 0: type \"a/b\" is not a file name"},
	} {
		_, err := conflist.Parse([]byte(test.list))
		expect.That(t, err != nil && strings.Contains(err.Error(), test.err), "%s: error %v, want one with %q", name, err, test.err)
	}
}

func TestASinglePluginIsNoList(t *testing.T) {
	for conf, hint := range map[string]bool{`{"name": "net", "type": "bridge"}`: true, `{"name": "net"}`: false} {
		list, err := conflist.Parse([]byte(conf)) // its plugins may be in files beside it
		expect.NoError(t, err)
		err = conflist.RequirePlugins(list)
		expect.That(t, err != nil && strings.Contains(err.Error(), "load it with WithConf") == hint, "%s: %v", conf, err)
	}
}

func TestParseSingleNamesTheMistake(t *testing.T) {
	for name, test := range map[string]struct{ conf, err string }{
		"empty":                   {``, "error parsing configuration: unexpected end of JSON input"},
		"no type":                 {`{"name": "net"}`, "error parsing configuration: missing 'type'"},
		"a list in a single file": {`{"name": "net", "plugins": [{"type": "x"}]}`, "error parsing configuration: missing 'type'"},
		"name null":               {`{"type": "x", "name": null}`, "invalid name type <nil>"},
	} {
		_, err := conflist.ParseSingle([]byte(test.conf))
		expect.That(t, err != nil && strings.Contains(err.Error(), test.err), "%s: error %v, want one with %q", name, err, test.err)
	}
}
