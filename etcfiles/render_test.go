package etcfiles

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/expect"
)

func TestResolv(t *testing.T) {
	for what, tt := range map[string]struct {
		dns  types.DNS
		want string
	}{
		"nothing": {types.DNS{}, ""},
		"everything": {
			types.DNS{Nameservers: []string{"10.1.0.1", "fe80::1%eth0"}, Domain: "a.example", Search: []string{"b", "c"}, Options: []string{"ndots:2", "rotate"}},
			"nameserver 10.1.0.1\nnameserver fe80::1%eth0\ndomain a.example\nsearch b c\noptions ndots:2 rotate\n",
		},
		"only options": {types.DNS{Options: []string{"edns0"}}, "options edns0\n"},
	} {
		expect.Same(t, what, string(expect.Value(renderResolvConf(tt.dns))(t)), tt.want)
	}
}

// TestAValueDoesNotBecomeALine: plugins name them, and a line could name another server.
func TestAValueDoesNotBecomeALine(t *testing.T) {
	for _, bad := range []string{"a\nnameserver 6.6.6.6", "a b", "a\tb", "#a", "a;b", "", "a\x00", "a\u2028b", "a\xffb"} {
		for what, dns := range map[string]types.DNS{
			"name server": {Nameservers: []string{bad}},
			"domain":      {Nameservers: []string{"10.1.0.1"}, Domain: bad},
			"search":      {Search: []string{"ok", bad}},
			"options":     {Options: []string{bad}},
		} {
			if bad == "" && what == "domain" {
				continue // there is none
			}
			if got, err := renderResolvConf(dns); err == nil || got != nil {
				t.Errorf("%s %q: %q, %v", what, bad, got, err)
			}
		}
		if got, err := renderHosts([]Entry{{netip.MustParseAddr("10.1.0.2"), []string{"ok", bad}}}); err == nil || got != nil {
			t.Errorf("name %q: %q, %v", bad, got, err)
		}
	}
}

func TestHosts(t *testing.T) {
	const local = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
	got := expect.Value(renderHosts([]Entry{
		{netip.MustParseAddr("10.1.0.2"), []string{"web-1", "web"}},
		{netip.MustParseAddr("::ffff:10.1.0.3"), []string{"db"}},
		{netip.MustParseAddr("fd00::2"), []string{"web-1"}},
	}))(t)
	expect.Same(t, "hosts", string(got), local+"10.1.0.2\tweb-1 web\n10.1.0.3\tdb\nfd00::2\tweb-1\n")
	expect.Same(t, "nobody", string(expect.Value(renderHosts(nil))(t)), local)
	for what, entry := range map[string]Entry{
		"no address":  {Names: []string{"x"}},
		"with a zone": {netip.MustParseAddr("fe80::1%eth0"), []string{"x"}},
		"no name":     {Addr: netip.MustParseAddr("10.1.0.2")},
	} {
		if got, err := renderHosts([]Entry{entry}); err == nil || got != nil {
			t.Errorf("%s: %q, %v", what, got, err)
		}
	}
}

// FuzzResolv: each line begins with a keyword, and has as many words as were given.
func FuzzResolv(f *testing.F) {
	f.Add("10.1.0.1", "example.org", "a", "ndots:1")
	f.Add("::1", "", "b\nnameserver 1.1.1.1", "\r")
	f.Fuzz(func(t *testing.T, server, domain, search, option string) {
		got, err := renderResolvConf(types.DNS{Nameservers: []string{server}, Domain: domain, Search: []string{search}, Options: []string{option}})
		if err != nil {
			return
		}
		want := []string{"nameserver"}
		if domain != "" {
			want = append(want, "domain")
		}
		want = append(want, "search", "options")
		lines := strings.Split(strings.TrimSuffix(string(got), "\n"), "\n")
		if len(lines) != len(want) {
			t.Fatalf("%q", got)
		}
		for i, line := range lines {
			if words := strings.Fields(line); len(words) != 2 || words[0] != want[i] {
				t.Errorf("line %d is %q", i, line)
			}
		}
	})
}
