package interchange

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// wordCase is a field of a plugin with a fixed set of words as values, and a
// configuration with it.
type wordCase struct {
	field string
	conf  string // WORD stands for the value
	behind,
	onDevice bool
	words []string
	// taken are words that ours accepts and the reference plugin refuses.
	taken []string
}

func wordCases() []wordCase {
	backends := []string{"", "iptables", "nftables", "ip6tables", "IPTables", "nft", "firewall", "iptables "}
	inOneForm := slices.Delete(slices.Clone(backends), 1, 2) // iptables is the executables'
	return []wordCase{
		{field: "firewall backend", conf: `{"type": "firewall", "backend": "WORD"}`, behind: true, words: backends},
		{field: "firewall backend with a zone", conf: `{"type": "firewall", "backend": "WORD", "firewalldZone": "trusted"}`, behind: true,
			words: []string{"", "iptables", "ip6tables"}},
		{field: "firewall zone", conf: `{"type": "firewall", "firewalldZone": "WORD"}`, behind: true, words: []string{"", "trusted", "no such zone"}},
		{field: "firewall ingressPolicy", conf: `{"type": "firewall", "backend": "iptables", "ingressPolicy": "WORD"}`, behind: true,
			words: []string{"", "open", "same-bridge", "isolated", "Open", "closed"}},
		{field: "portmap backend", conf: `{"type": "portmap", "backend": "WORD", "capabilities": {"portMappings": true}}`, behind: true, words: inOneForm},
		{field: "bridge ipMasqBackend", conf: `{"type": "bridge", "isGateway": true, "ipMasq": true, "ipMasqBackend": "WORD", IPAM}`, words: inOneForm,
			taken: []string{""}},
		{field: "bridge ipMasqBackend without ipMasq", conf: `{"type": "bridge", "isGateway": true, "ipMasqBackend": "WORD", IPAM}`, words: backends},
		{field: "ptp ipMasqBackend", conf: `{"type": "ptp", "ipMasq": true, "ipMasqBackend": "WORD", IPAM}`, words: inOneForm, taken: []string{""}},
		{field: "ptp ipMasqBackend without ipMasq", conf: `{"type": "ptp", "ipMasqBackend": "WORD", IPAM}`, words: backends},
		{field: "macvlan mode", conf: `{"type": "macvlan", "master": "up0", "mode": "WORD", IPAM}`, onDevice: true,
			words: []string{"", "bridge", "private", "vepa", "passthru", "Bridge", "source"}},
	}
}

// TestFault_F54_WordsThatTheExecutableTakes: ours accepts every word that the
// reference plugin accepts.
func TestFault_F54_WordsThatTheExecutableTakes(t *testing.T) {
	for _, c := range wordCases() {
		for _, word := range c.words {
			t.Run(fmt.Sprintf("%s %q", c.field, word), func(t *testing.T) {
				t.Parallel()
				their, our := c.add(t, word, theirs()), c.add(t, word, ours())
				expect.That(t, their != nil || our == nil, "the reference plugin takes it, ours says: %v", our)
				if their != nil && our == nil && !slices.Contains(c.taken, word) {
					t.Errorf("ours takes it, the reference plugin says: %v", their)
				}
			})
		}
	}
}

// add runs an ADD on a new host, then CHECK and DEL of that attachment.
func (c wordCase) add(t *testing.T, word string, s side) error {
	conf := configuration{network: network{plugins: []string{fill(strings.ReplaceAll(c.conf, "WORD", word), "dual")}}}
	if c.behind {
		conf = chained("", strings.ReplaceAll(c.conf, "WORD", word))
	}
	if c.onDevice {
		conf.network.prepare = device
	}
	h := conf.network.newHost(t)
	a := h.attachment(&conf.network, "c1")
	if _, err := a.add(s); err != nil {
		return err
	}
	err := a.check(s)
	expect.That(t, err == nil, "%s: CHECK: %v", s.name, err)
	err = a.del(s)
	expect.That(t, err == nil, "%s: DEL: %v", s.name, err)
	return nil
}
