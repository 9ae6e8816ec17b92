package chain

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"testing"
	"unicode/utf8"

	"github.com/embedcni/cni/internal/expect"
)

// FuzzRequest: every value of a configuration reaches the plugin byte for byte,
// unless it is the runtime's own. None of the runtime's own values does. The
// runtime's additions are present.
func FuzzRequest(f *testing.F) {
	for _, seed := range []string{
		`{"type": "x", "n": 9007199254740993, "s": "<&>", "a": [1, {"b": null}]}`,
		`{"runtimeConfig": 1, "RUNTIMECONFIG": 2, "prevResult": {}, "prevReſult": 3, "capabilities": {}, "cni.dev/x": 1, "CNI.DEV/": 2}`,
		`{"args": {"cni": {"ips": ["1.1.1.1"], "z": 1.0}, "other": [ ]}, "name": "other", "cniVersion": "0.1.0"}`,
		`{"a": 1, "b": 2, "\u0061": 3, "args": null}`,
		`{"args": {"cni": null}}`, `{"args": 1}`, `{"args": {"cni": []}}`, `{"\ud800": 1, "a\u0000b": 2}`, `{}`, `null`, "{\"\xff\": \"\xff\"}",
	} {
		f.Add([]byte(seed), "ips", `{"cniVersion": "1.0.0", "name": "net", "prevResult": {"ips": []}}`)
	}
	f.Fuzz(func(t *testing.T, config []byte, arg, added string) {
		if !json.Valid(config) || !json.Valid([]byte(added)) || !utf8.ValidString(arg) {
			return
		}
		c, err := parseObject(config)
		if err != nil {
			return
		}
		a, err := parseObject([]byte(added))
		if err != nil {
			return
		}
		for _, args := range []map[string]any{nil, {arg: 9007199254740993}} {
			data, err := derive(config, a, args)
			if err != nil {
				expect.That(t, args != nil, "derive: %v", err)
				continue // args of the file are not an object
			}
			wantDerived(t, c, a, data, args)
		}
	})
}

func wantDerived(t *testing.T, config, added object, data []byte, args map[string]any) {
	t.Helper()
	got, err := parseObject(data)
	expect.Must(t, err == nil && json.Valid(data), "the request is no object: %v: %s", err, data)
	for _, m := range added {
		value, ok := got.get(m.key)
		expect.That(t, ok && bytes.Equal(value, m.value), "added %q is %s, want %s", m.key, value, m.value)
	}
	for _, m := range config {
		if _, over := added.get(m.key); over || m.key == "args" && args != nil {
			continue
		}
		value, ok := got.get(m.key)
		expect.That(t, reserved(m.key) != ok && (!ok || bytes.Equal(value, m.value)), "%q became %s (%v), was %s", m.key, value, ok, m.value)
	}
	if _, over := added.get("args"); args != nil && !over {
		wantMerged(t, config, got, args)
	}
}

// wantMerged checks that args.cni has the given values in addition to the
// file's.
func wantMerged(t *testing.T, config, got object, args map[string]any) {
	t.Helper()
	cni := func(o object) object {
		raw, _ := o.get("args")
		raw, _ = expect.Value(parseObject(raw))(t).get("cni")
		return expect.Value(parseObject(raw))(t)
	}
	was, is := cni(config), cni(got)
	for key := range args {
		value, ok := is.get(key)
		expect.That(t, ok && string(value) == "9007199254740993", "args.cni.%q is %s", key, value)
		was = slices.DeleteFunc(was, func(m member) bool { return m.key == key })
		is = slices.DeleteFunc(is, func(m member) bool { return m.key == key })
	}
	expect.That(t, len(was) == len(is) && (len(was) == 0 || reflect.DeepEqual(was, is)), "args.cni had %v, has %v", was, is)
}
