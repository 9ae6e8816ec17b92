package cni_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/testhost"
)

// TestMisspeltFieldsAreReported, by New and Load, in the log and by GetConfig, with the
// file, the network, the plugin and the nearest name.
func TestMisspeltFieldsAreReported(t *testing.T) {
	const wrong = `{"cniVersion": "1.0.0", "name": "podnet", "plugins": [
		{"type": "bridge", "isGatway": true, "_comment": "", "ipam": {"type": "host-local", "subnett": "10.1.0.0/24", "example.org/range": 1}},
		{"type": "vendor", "isGatway": true}, {"type": "portmap", "snta": true, "capabilities": {"portMappings": true}}]}`
	dir := testhost.ConfDir(t, map[string]string{"10-podnet.conflist": wrong, "20-other.conflist": strings.ReplaceAll(wrong, "podnet", "other")})
	in := func(file, network string) []cni.MisspeltField {
		path := ""
		if file != "" {
			path = filepath.Join(dir, file)
		}
		return []cni.MisspeltField{
			{path, network, "bridge", "ipam.subnett", "ipam.subnet"},
			{path, network, "bridge", "isGatway", "isGateway"},
			{path, network, "portmap", "snta", "snat"},
		}
	}
	var log bytes.Buffer
	logger := cni.WithLogger(slog.New(slog.NewJSONHandler(&log, nil)))
	r, err := cni.New(logger, cni.WithPluginConfDir(dir), cni.WithAllConf)
	if err != nil {
		t.Fatal(err)
	}
	check := func(when string, want []cni.MisspeltField) {
		t.Helper()
		if got := r.GetConfig().Misspelt; !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, want %+v", when, got, want)
		}
		var logged []cni.MisspeltField
		for dec := json.NewDecoder(&log); dec.More(); {
			var line struct {
				Level, Msg string
				cni.MisspeltField
			}
			if err := dec.Decode(&line); err != nil {
				t.Fatal(err)
			}
			if line.Level != "WARN" || line.Msg != "a field is ignored: it is probably misspelt" {
				t.Errorf("%s: logged %+v", when, line)
			}
			logged = append(logged, line.MisspeltField)
		}
		if !reflect.DeepEqual(logged, want) {
			t.Errorf("%s: logged %+v, want %+v", when, logged, want)
		}
	}
	check("New", append(in("10-podnet.conflist", "podnet"), in("20-other.conflist", "other")...))

	load := func(opts ...cni.Opt) {
		t.Helper()
		if err := r.Load(opts...); err != nil {
			t.Fatal(err)
		}
	}
	load(cni.WithConfListFile(filepath.Join(dir, "20-other.conflist")))
	check("Load of a file", in("20-other.conflist", "other"))
	load(cni.WithConfListBytes([]byte(wrong)))
	check("Load of bytes", in("", "podnet"))
	load(cni.WithConf([]byte(`{"cniVersion": "1.0.0", "name": "single", "type": "ptp", "ipMask": true}`)))
	check("Load of a single plugin", []cni.MisspeltField{{"", "single", "ptp", "ipMask", "ipMasq"}})

	// A registered plugin has another configuration than the built-in one.
	load(cni.WithConfListBytes([]byte(wrong)), cni.WithPlugin("bridge", testhost.Idle{}))
	check("Load with a plugin of the caller's", in("", "podnet")[2:])

	load(cni.WithLoNetwork, cni.WithConfListBytes([]byte(testhost.ListOf("podnet"))))
	check("Load of correct networks", nil)
	text, err := json.Marshal(r.GetConfig())
	if err != nil || strings.Contains(string(text), `"Misspelt":`) {
		t.Errorf("an empty list is in the JSON: %s, %v", text, err)
	}
}
