package oracle

import (
	"regexp"
	"sync"
	"testing"

	"github.com/embedcni/cni/internal/audit"
)

// difference is an intended difference from go-cni, as a line in the
// description of a container's life.
type difference struct {
	cases  string // expression for name/version
	ours   string // expression for lines of this library only
	theirs string // expression for lines of go-cni only
	why    string
}

func differences() []difference {
	const noOptions = "Remove gets no port mappings here: go-cni then calls portmap without, which deletes nothing, " +
		"and returns nil; this library gives plugins those of the Setup (F6)"
	return []difference{
		{"(bridge IPv4|everything)/(0.4.0|1.*)", "check passes", "check is not supported",
			"go-cni's loopback is of version 0.3.1, which has no CHECK, so that its Check always fails (R34)"},
		{".*", `made link cni0 type bridge mtu \d+ up alias embedcni`, `made link cni0 type bridge mtu \d+ up`,
			"the bridge of an executable's ADD is marked, so that a repair can tell it from the host's (F65)"},
		{"(portmap iptables|everything)/.*", "",
			`left ip6?tables(-nft|-legacy)? nat -[AN] CNI-(DN-\w+|HOSTPORT-DNAT)( .*)?`, noOptions},
		{"portmap nftables/.*", "",
			`left nft rule ip6? cni_hostport (hostports|hostip_hostports|masquerading) .* comment "c1"`, noOptions},
	}
}

// seenDifferences records the listed differences that occurred, because one
// that no longer occurs must not stay listed.
type seenDifferences struct {
	mu       sync.Mutex
	seen     map[int]bool
	compared int
}

// unlisted returns the lines without a listed reason.
func (s *seenDifferences) unlisted(name string, ours, theirs audit.Lines) (audit.Lines, audit.Lines) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.compared++
	for i, d := range differences() {
		if !matches(d.cases, name) {
			continue
		}
		restOurs := ours.Without(func(l string) bool { return matches(d.ours, l) })
		restTheirs := theirs.Without(func(l string) bool { return matches(d.theirs, l) })
		if len(restOurs) < len(ours) || len(restTheirs) < len(theirs) {
			if s.seen == nil {
				s.seen = make(map[int]bool)
			}
			s.seen[i] = true
		}
		ours, theirs = restOurs, restTheirs
	}
	return ours, theirs
}

func matches(expr, text string) bool {
	return expr != "" && regexp.MustCompile("^(?:"+expr+")$").MatchString(text)
}

func (s *seenDifferences) wantAll(t *testing.T) {
	t.Helper()
	for i, d := range differences() {
		if !s.seen[i] {
			t.Errorf("listed, but not seen: %+v", d)
		}
	}
}
