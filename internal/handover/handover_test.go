package handover

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/conflist"
	"github.com/embedcni/cni/internal/footprint"
	"github.com/embedcni/cni/internal/record"
)

// whole returns the record of a container that go-cni could remove.
func whole() *record.Record {
	return &record.Record{
		ContainerID: "c1", Owner: "tester", Boot: "this boot", Host: "4:1", HostPath: "/proc/1/ns/net",
		Attachments: []record.Attachment{{Network: "net", IfName: "eth0", State: record.Added}},
	}
}

func TestRecord(t *testing.T) {
	for want, change := range map[string]func(*record.Record){
		"":                        func(*record.Record) {},
		"a pool made it ahead":    func(r *record.Record) { r.Warm = true },
		"under an ID that":        func(r *record.Record) { r.PluginID = "warm-1" },
		"would not delete that":   func(r *record.Record) { r.NetNS.Ours = true },
		"another owner":           func(r *record.Record) { r.Attachments = append(r.Attachments, record.Attachment{Owner: "another"}) },
		"nothing of it":           func(r *record.Record) { r.Attachments[0].State = record.Deleted },
		"rebooted":                func(r *record.Record) { r.Boot = "another" },
		"ran in network namespac": func(r *record.Record) { r.Host = "4:2" },
	} {
		rec := whole()
		change(rec)
		err := Record(rec, "tester", "this boot", "4:1")
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
		if elsewhere := rec.Host != "4:1"; errors.Is(err, ErrElsewhere) != elsewhere {
			t.Errorf("%v: out of reach is %v", err, elsewhere)
		}
	}
	rec := whole()
	rec.Attachments = append(rec.Attachments, record.Attachment{Owner: "another", State: record.Deleted})
	if err := Record(rec, "tester", "this boot", "4:1"); err != nil {
		t.Errorf("another owner's: %v", err)
	}
}

func TestWhole(t *testing.T) {
	for want, n := range map[string]record.Attachment{
		"":                             {State: record.Added},
		"attached in part":             {State: record.Planned},
		"(0 failures, the last: none)": {State: record.Deleting},
		"(2 failures, the last: no)":   {State: record.Added, Failures: 2, LastError: "no"},
	} {
		if err := Whole(&n); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

func TestSameOptions(t *testing.T) {
	network := func(capability string, args ...string) record.Attachment {
		n := record.Attachment{Network: "net", State: record.Added, Capabilities: map[string]json.RawMessage{"ips": json.RawMessage(capability)}}
		for _, a := range args {
			n.Args = append(n.Args, [2]string{a, "1"})
		}
		return n
	}
	deleted := network(`[]`)
	deleted.State = record.Deleted
	for what, test := range map[string]struct {
		networks []record.Attachment
		want     bool
	}{
		"one":               {[]record.Attachment{network(`[1]`)}, true},
		"the same":          {[]record.Attachment{network(`[{"a": 1, "b": 2}]`, "A"), network(`[{"b":2,"a":1}]`, "A")}, true},
		"another value":     {[]record.Attachment{network(`[1]`), network(`[2]`)}, false},
		"another argument":  {[]record.Attachment{network(`[1]`, "A"), network(`[1]`)}, false},
		"one that was gone": {[]record.Attachment{network(`[1]`), deleted}, true},
	} {
		if err := SameOptions(test.networks); (err == nil) != test.want {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestSameConfiguration(t *testing.T) {
	attached, err := conflist.Parse([]byte(`{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "bridge", "mtu": 1400}]}`))
	if err != nil {
		t.Fatal(err)
	}
	a := &footprint.Attachment{List: attached}
	a.IfName = "eth0"
	for what, test := range map[string]struct {
		loaded, ifName, want string
	}{
		"the same":               {`{"name": "net", "cniVersion": "1.0.0", "plugins": [{"mtu":1400,"type":"bridge"}]}`, "eth0", ""},
		"another one":            {`{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "bridge"}]}`, "eth0", "another configuration"},
		"another interface name": {string(attached.Bytes), "eth1", "not loaded under that interface name"},
		"another network":        {`{"cniVersion": "1.0.0", "name": "other", "plugins": [{"type": "bridge"}]}`, "eth0", "not loaded"},
	} {
		list, err := conflist.Parse([]byte(test.loaded))
		if err != nil {
			t.Fatal(err)
		}
		g := &GoCNI{Networks: []Network{{list, test.ifName}}}
		err = g.sameConfiguration(a)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: want %q, got %v", what, test.want, err)
		}
	}
}
