package warm

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/record"
)

// plugins returns a chain: "bridge/host-local" has an IPAM plugin, "portmap+"
// declares a capability that no plugin of the table reads, and "bridge=mac" that one.
func plugins(chain ...string) (all []*libcni.PluginConfig) {
	for _, one := range chain {
		one, capability, _ := strings.Cut(one, "=")
		typ, ipam, _ := strings.Cut(strings.TrimSuffix(one, "+"), "/")
		conf := &types.NetConf{Type: typ, IPAM: types.IPAM{Type: ipam}}
		if strings.HasSuffix(one, "+") {
			capability = "x"
		}
		if capability != "" {
			conf.Capabilities = map[string]bool{capability: true}
		}
		all = append(all, &libcni.PluginConfig{Network: conf})
	}
	return all
}

func TestAhead(t *testing.T) {
	for what, test := range map[string]struct {
		chain      []string
		registered string
		want       int
	}{
		"all":                      {[]string{"bridge/host-local", "firewall", "tuning"}, "", 3},
		"to the first capability":  {[]string{"bridge/host-local", "portmap+", "firewall"}, "", 1},
		"none":                     {[]string{"bridge/host-local+"}, "", 0},
		"beyond one that is read":  {[]string{"bridge/host-local=ips", "tuning=mac", "firewall"}, "", 3},
		"another plugin's":         {[]string{"ptp/host-local=mac"}, "", 0},
		"to the first unknown one": {[]string{"ptp/static", "mesh"}, "", 1},
		"an unknown IPAM plugin":   {[]string{"bridge/dhcp"}, "", 0},
		"the program's":            {[]string{"bridge/host-local", "firewall"}, "firewall", 1},
		"the program's IPAM":       {[]string{"bridge/host-local"}, "host-local", 0},
	} {
		got := Ahead(plugins(test.chain...), func(typ string) bool { return typ == test.registered })
		if got != test.want {
			t.Errorf("%s: got %d, want %d", what, got, test.want)
		}
	}
}

func TestAsked(t *testing.T) {
	chain := plugins("bridge/host-local=ips", "tuning=mac")
	for given, want := range map[string]bool{"ips": true, "mac": true, "dns": false} {
		if got := Asked(chain, map[string]any{given: 1}); got != want {
			t.Errorf("%s: got %t, want %t", given, got, want)
		}
	}
	if Asked(chain[1:], map[string]any{"ips": 1}) || Asked[any](chain, nil) {
		t.Error("nothing is asked of these plugins")
	}
}

func TestCanWait(t *testing.T) {
	for what, test := range map[string]struct {
		args   [][2]string
		config map[string]any
		want   bool
	}{
		"none":                     {nil, nil, true},
		"one that is not ignored":  {[][2]string{{"K8S_POD_NAME", "p"}}, nil, false},
		"one that is ignored":      {[][2]string{{"IgnoreUnknown", "true"}, {"K8S_POD_NAME", "p"}}, nil, true},
		"said otherwise":           {[][2]string{{"IgnoreUnknown", "no"}, {"K8S_POD_NAME", "p"}}, nil, false},
		"an address":               {[][2]string{{"IgnoreUnknown", "1"}, {"IP", "10.1.0.1"}}, nil, false},
		"in the configuration":     {nil, map[string]any{"ips": 1}, false},
		"of no meaning in there":   {nil, map[string]any{"labels": 1}, true},
		"both, one with a meaning": {[][2]string{{"IgnoreUnknown", "1"}}, map[string]any{"mac": 1}, false},
	} {
		if got := CanWait(test.args, test.config); got != test.want {
			t.Errorf("%s: got %v", what, got)
		}
	}
}

// TestOrphans: containers of a running process's pool are omitted, one that has
// become another container is stale, and a doubtful one is kept.
func TestOrphans(t *testing.T) {
	errUnread := errors.New("unread")
	made := func(runtime string) record.Found {
		return record.Found{Record: &record.Record{ContainerID: "warm-1", Runtime: runtime, Warm: true}}
	}
	container := record.Found{Record: &record.Record{ContainerID: "c1"}}
	user := record.Found{Record: &record.Record{ContainerID: "c2", PluginID: "warm-1"}}
	nameless := record.Found{Record: &record.Record{}, Err: errUnread}
	unread, broken := made("dead"), made("alive")
	unread.Err = errUnread
	broken.Record.Attachments = []record.Attachment{{Failures: 1}}
	alive := func(r *record.Record) (bool, error) {
		if r.Runtime == "?" {
			return true, errUnread
		}
		return r.Runtime == "alive", nil
	}
	for what, test := range map[string]struct {
		found []record.Found
		want  string // of the one that was made in advance
	}{
		"of a living process":           {[]record.Found{container, made("alive")}, "left out"},
		"of a dead one":                 {[]record.Found{container, made("dead")}, "rest <nil>"},
		"of nobody knows which":         {[]record.Found{made("?")}, "rest unread"},
		"whose removal has failed":      {[]record.Found{broken}, "rest <nil>"},
		"taken":                         {[]record.Found{made("dead"), user}, "stale"},
		"taken, of a living process":    {[]record.Found{made("alive"), user}, "left out"},
		"taken, and the record damaged": {[]record.Found{unread, user}, "rest unread"},
		"perhaps taken":                 {[]record.Found{nameless, made("dead")}, "rest it may be another container's by now: unread"},
	} {
		rest, stale := Orphans(test.found, alive)
		got := "left out"
		for _, f := range rest {
			if f.Record.Warm {
				got = fmt.Sprint("rest ", f.Err)
			}
		}
		if slices.Equal(stale, []record.ID{"warm-1"}) {
			got = "stale"
		}
		if got != test.want {
			t.Errorf("%s: got %q, want %q", what, got, test.want)
		}
		if others := slices.DeleteFunc(slices.Clone(test.found), func(f record.Found) bool { return f.Record.Warm }); len(rest) < len(others) {
			t.Errorf("%s: %d of %d others are left", what, len(rest), len(others))
		}
	}
}
