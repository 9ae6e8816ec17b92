package record

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"
)

// extended returns the base of a record with members added, at each level that
// keeps unknown ones.
func extended(t testing.TB, more [4]string) string {
	t.Helper()
	r := sample("c1")
	r.Attachments[0].Plugins = []Plugin{{Type: "bridge", Kind: "built in"}, {Type: "portmap", Kind: "built in"}}
	data, err := json.Marshal(r)
	check(t, err)
	text := string(data)
	for i, after := range []string{`{`, `"netns":{`, `{"name":"other",`, `{"type":"portmap",`} {
		if more[i] != "" {
			added := strings.TrimSuffix(after, ",")
			member, comma := more[i]+",", ""
			if strings.HasSuffix(after, ",") {
				member, comma = ","+more[i], ","
			}
			text = strings.Replace(text, after, added+member+comma, 1)
		}
	}
	return text
}

// rewritten reads the base and writes it again with another attachment, as a
// Setup of another interface does.
func rewritten(t testing.TB, base string) string {
	t.Helper()
	s := Open(t.TempDir())
	check(t, os.WriteFile(s.path("c1"), line(t, `{"format":2,"record":`+base+`}`), 0o600))
	old, err := s.Load("c1")
	check(t, err)
	now := sample("c1")
	now.NetNS, now.Generation = NetNS{Path: "/elsewhere", Dev: old.NetNS.Dev, Ino: old.NetNS.Ino}, old.Generation
	now.Attachments = append([]Attachment{}, old.Attachments...)
	now.Attachments = append(now.Attachments, Attachment{Network: "third", IfName: "eth9"})
	now.Inherit(old)
	check(t, s.Begin(now))
	data, err := os.ReadFile(s.path("c1"))
	check(t, err)
	_, json, _ := strings.Cut(strings.TrimRight(string(data), "\n"), " ")
	return json
}

// same returns JSON in the encoder's form.
func same(t testing.TB, data json.RawMessage) string {
	t.Helper()
	data, err := json.Marshal(data)
	check(t, err)
	return string(data)
}

// wantMembers checks that members are where they were added.
func wantMembers(t *testing.T, got string, more [4]string) {
	t.Helper()
	var b struct {
		Format int
		Record map[string]json.RawMessage
	}
	check(t, json.Unmarshal([]byte(got), &b))
	want(t, "format", b.Format, format)
	var ns map[string]json.RawMessage
	var networks []map[string]json.RawMessage
	check(t, json.Unmarshal(b.Record["netns"], &ns))
	check(t, json.Unmarshal(b.Record["networks"], &networks))
	want(t, "attachments", len(networks), 3)
	var plugins []map[string]json.RawMessage
	check(t, json.Unmarshal(networks[0]["plugins"], &plugins))
	for i, in := range []map[string]json.RawMessage{b.Record, ns, networks[1], plugins[1]} {
		if more[i] == "" {
			continue
		}
		var added map[string]json.RawMessage
		check(t, json.Unmarshal([]byte("{"+more[i]+"}"), &added))
		for name, value := range added {
			want(t, fmt.Sprintf("level %d: %s", i, name), same(t, in[name]), same(t, value))
		}
	}
	// Known fields have this version's values.
	want(t, "path", string(ns["path"]), `"/elsewhere"`)
	want(t, "name of the second network", string(networks[1]["name"]), `"other"`)
	want(t, "type of the second plugin", string(plugins[1]["type"]), `"portmap"`)
}

// TestFault_F43_UnknownFieldsSurviveRewriting at each level, alone and
// together.
func TestFault_F43_UnknownFieldsSurviveRewriting(t *testing.T) {
	all := [4]string{`"x":{"deep":[1,2.50]}`, `"x":"<&>"`, `"x":null,"y":12345678901234567890`, `"x":[]`}
	for only := range 1 << len(all) {
		var more [4]string
		for i := range all {
			if only&(1<<i) != 0 {
				more[i] = all[i]
			}
		}
		wantMembers(t, rewritten(t, extended(t, more)), more)
	}
}

// TestFault_F43_UnknownFieldsOfAnotherNamespaceGo, because they described the
// old one.
func TestFault_F43_UnknownFieldsOfAnotherNamespaceGo(t *testing.T) {
	old := &Record{NetNS: NetNS{Dev: 1, Ino: 2, unknown: members{"x": nil}}, unknown: members{"y": nil}}
	now := &Record{NetNS: NetNS{Dev: 1, Ino: 3}}
	now.Inherit(old)
	want(t, "of the namespace", now.NetNS.unknown, members(nil))
	want(t, "of the record", now.unknown, members{"y": nil})
}

func FuzzUnknownFieldsSurvive(f *testing.F) {
	seed := uint64(time.Now().UnixNano())
	f.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 20 {
		f.Add(fmt.Sprintf("new%x", rng.Uint32()), rng.Float64(), `"`+strings.Repeat("x", rng.IntN(100))+`"`, uint8(rng.IntN(16)))
	}
	f.Fuzz(func(t *testing.T, name string, number float64, text string, levels uint8) {
		var value any
		if json.Unmarshal([]byte(text), &value) != nil {
			value = number
		}
		data, err := json.Marshal(map[string]any{"new-" + name: value}) // no field has this name
		if err != nil {
			t.Skip()
		}
		var more [4]string
		for i := range more {
			if levels&(1<<i) != 0 {
				more[i] = string(data[1 : len(data)-1])
			}
		}
		wantMembers(t, rewritten(t, extended(t, more)), more)
	})
}
