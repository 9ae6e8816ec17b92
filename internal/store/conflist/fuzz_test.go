package conflist_test

import (
	"bytes"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/store/conflist"
)

var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,179}$`)

// FuzzParse: an accepted list has a valid name, plugins that are file names, a
// known version, and each plugin's bytes unchanged. Parsing it again gives the
// same result.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		`{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "bridge", "ipam": {"type": "host-local"}}]}`,
		`{"cniVersions": ["1.0.0", "1.1.0", "2.0.0"], "name": "net", "disableCheck": "TRUE", "disableGC": false, "plugins": [{"type": "a"}, {"type": "b", "n": 9007199254740993}]}`,
		`{"cniVersion": "0.3.1", "name": "net", "type": "bridge", "capabilities": {"portMappings": true}, "dns": {"nameservers": ["1.1.1.1"]}}`,
		`{"name": "net", "type": "x", "TYPE": "../x", "ipam": {"TYPE": "/"}}`,
		"{\"name\": \"\\u006eet\", \"plugins\": [ {\"type\":\"\\u002e.\"} , {\"type\": \"<&>\xff\"}], \"loadOnlyInlinedPlugins\": true}",
		`{"name": "a", "name": "b", "plugins": [{"type": "a"}], "plugins": [{"type": "b"}]}`,
		`{"name": "net", "plugins": [{"type": "x", "prevResult": {"ips": [{}]}, "args": {"cni": {"k": [1]}}}]}`,
		`{"name": "net", "type": "x", "cniVersions": ["1.0.0"], "disableCheck": true}`,
		`null`, ``, `[]`, `{"name": 1}`, `{"name": "net", "plugins": [null]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if list, err := conflist.Parse(slices.Clone(data)); err == nil {
			wantValid(t, list)
			wantBytes(t, data, list)
			wantSameAgain(t, list)
		}
		if list, err := conflist.ParseSingle(slices.Clone(data)); err == nil {
			wantValid(t, list)
			expect.That(t, len(list.Plugins) == 1 && bytes.Equal(list.Plugins[0].Bytes, bytes.TrimSpace(data)),
				"the plugin became %q", list.Plugins[0].Bytes)
			wantSameAgain(t, list)
		}
	})
}

func wantValid(t *testing.T, list *libcni.NetworkConfigList) {
	t.Helper()
	expect.That(t, validName.MatchString(list.Name), "name %q is accepted", list.Name)
	expect.That(t, list.CNIVersion == "" || slices.Contains(version.All.SupportedVersions(), list.CNIVersion),
		"version %q is accepted", list.CNIVersion)
	for _, p := range list.Plugins {
		var seen struct {
			Type string
			IPAM struct{ Type string }
		}
		if err := json.Unmarshal(p.Bytes, &seen); err != nil {
			t.Fatalf("plugin %q: %v", p.Bytes, err)
		}
		expect.That(t, p.Network.Type != "" && seen.Type != "", "a plugin without a type is accepted: %q", p.Bytes)
		for _, typ := range []string{p.Network.Type, p.Network.IPAM.Type, seen.Type, seen.IPAM.Type} {
			expect.That(t, typ != "." && typ != ".." && !strings.ContainsAny(typ, "/\\\x00"), "type %q is accepted", typ)
		}
	}
}

// wantBytes compares the plugins with the list's text.
func wantBytes(t *testing.T, data []byte, list *libcni.NetworkConfigList) {
	t.Helper()
	var raw map[string]json.RawMessage
	expect.NoError(t, json.Unmarshal(data, &raw))
	var plugins []json.RawMessage
	if raw["plugins"] != nil {
		expect.NoError(t, json.Unmarshal(raw["plugins"], &plugins))
	}
	expect.Must(t, len(plugins) == len(list.Plugins), "%d plugins became %d", len(plugins), len(list.Plugins))
	for i, p := range plugins {
		expect.That(t, bytes.Equal(p, list.Plugins[i].Bytes), "plugin %d became %q", i, list.Plugins[i].Bytes)
	}
}

func wantSameAgain(t *testing.T, list *libcni.NetworkConfigList) {
	t.Helper()
	again, err := conflist.Parse(list.Bytes)
	if err != nil {
		t.Fatalf("its own bytes are refused: %v: %s", err, list.Bytes)
	}
	expect.Same(t, "read again", summary(again), summary(list))
}
