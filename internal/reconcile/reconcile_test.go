package reconcile

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/embedcni/cni/internal/conflist"
	"github.com/embedcni/cni/internal/record"
)

func TestAskFor(t *testing.T) {
	for what, tt := range map[string]struct {
		plugins    string
		registered bool
		want       Asking
	}{
		"host-local":                     {plugins: `{"type": "bridge", "ipam": {"type": "host-local"}}`, want: Argument},
		"host-local with the capability": {plugins: `{"type": "bridge", "capabilities": {"ips": true}, "ipam": {"type": "host-local"}}`, want: Capability},
		"one that is turned off":         {plugins: `{"type": "bridge", "capabilities": {"ips": false}, "ipam": {"type": "host-local"}}`, want: Argument},
		"the caller's own host-local":    {plugins: `{"type": "bridge", "ipam": {"type": "host-local"}}`, registered: true, want: Nobody},
		"another with the capability":    {plugins: `{"type": "bridge", "capabilities": {"ips": true}, "ipam": {"type": "whereabouts"}}`, want: Capability},
		"another":                        {plugins: `{"type": "bridge", "ipam": {"type": "dhcp"}}`, want: Nobody},
		"static":                         {plugins: `{"type": "bridge", "capabilities": {"ips": true}, "ipam": {"type": "static"}}`, want: Nobody},
		"two of them":                    {plugins: `{"type": "bridge", "ipam": {"type": "host-local"}}, {"type": "x", "ipam": {"type": "dhcp"}}`, want: Nobody},
		"none":                           {plugins: `{"type": "bridge", "capabilities": {"ips": true}}`, want: Nobody},
		"a meta plugin after it":         {plugins: `{"type": "ptp", "ipam": {"type": "host-local"}}, {"type": "portmap"}`, want: Argument},
	} {
		list, err := conflist.Parse([]byte(`{"cniVersion": "1.0.0", "name": "net", "plugins": [` + tt.plugins + `]}`))
		if err != nil {
			t.Fatal(err)
		}
		if got := AskFor(list, func(string) bool { return !tt.registered }); got != tt.want {
			t.Errorf("%s: %v, want %v", what, got, tt.want)
		}
	}
}

func TestLost(t *testing.T) {
	addrs := func(texts ...string) (all []netip.Addr) {
		for _, text := range texts {
			all = append(all, netip.MustParseAddr(text))
		}
		return all
	}
	got := Lost(addrs("10.0.0.3", "10.0.0.1", "fd00::1", "10.0.0.1", "10.0.0.2"), addrs("10.0.0.2", "10.0.0.9"))
	if want := addrs("10.0.0.3", "10.0.0.1", "fd00::1"); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := Lost(nil, addrs("10.0.0.2")); got != nil {
		t.Errorf("%v", got)
	}
}

func TestUnexpected(t *testing.T) {
	found := []record.Found{
		{Record: &record.Record{ContainerID: "c3"}}, {Record: &record.Record{ContainerID: "c1"}}, {Record: &record.Record{ContainerID: "c2"}},
		{Record: &record.Record{ContainerID: "pooled", Warm: true}}, {Record: &record.Record{}, File: "0a1b"},
	}
	nameOf := func(f record.Found) string { return string(f.Record.ContainerID) + f.File }
	got := Unexpected(found, map[record.ID]bool{"c2": true, "c9": true}, nameOf)
	if want := []string{"0a1b", "c1", "c3"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
