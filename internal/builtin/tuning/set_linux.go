package tuning

import (
	"context"
	"encoding/json"
	"maps"
	"net"
	"strconv"
	"strings"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/plugin"
)

// factSet is the note of the values that the tuning plugins of a chain have set,
// the last one of each. It shows a plugin in CHECK that a later one has changed
// its settings.
const factSet = "tuning.set"

// noteSet adds the settings of a configuration to the note.
func noteSet(ctx context.Context, c *config) error {
	values := c.values()
	if len(values) == 0 {
		return nil
	}
	all := lastSet(ctx)
	if all == nil {
		all = make(map[string]string)
	}
	maps.Copy(all, values)
	return caller.From(ctx).Record.Note(factSet, all)
}

// lastSet reads the note. Without a note, as after an executable's ADD, every
// plugin counts as the last.
func lastSet(ctx context.Context) map[string]string {
	var all map[string]string
	if json.Unmarshal(caller.From(ctx).Record.Fact(factSet), &all) != nil {
		return nil
	}
	return all
}

// values returns the settings of a configuration, by sysctl file and attribute.
func (c *config) values() map[string]string {
	values := make(map[string]string)
	for _, s := range c.sysctls {
		values[s.file] = s.value
	}
	for _, a := range c.attributes.list() {
		if a.name != "promisc" { // it is never turned off
			values[a.name] = a.value
		}
	}
	return values
}

// without returns the configuration without the settings that a later plugin has
// changed, by the note, or by the result as far as it contains them.
func (c *config) without(r *plugin.Request, last map[string]string) *config {
	own := *c
	own.sysctls = nil
	values := c.values()
	replaced := func(key string) bool {
		value, noted := last[key]
		return noted && value != values[key]
	}
	for _, s := range c.sysctls {
		if !replaced(s.file) {
			own.sysctls = append(own.sysctls, s)
		}
	}
	said, err := compare.Reported(r)
	mac, _ := net.ParseMAC(c.attributes.Mac) // which parse has made
	if replaced("mac") || err == nil && !compare.SameMAC(said.Mac, mac) {
		own.attributes.Mac = ""
	}
	if replaced("mtu") || err == nil && said.Mtu != 0 && said.Mtu != c.attributes.Mtu {
		own.attributes.Mtu = 0
	}
	if replaced("allmulti") {
		own.attributes.Allmulti = nil
	}
	if replaced("txQLen") {
		own.attributes.TxQLen = nil
	}
	return &own
}

// canonical returns a sysctl's value as words separated by single spaces, with
// numbers in decimal. The kernel accepts any number that strtol(3) does.
func canonical(value string) string {
	words := strings.Fields(value)
	for i, word := range words {
		if n, err := strconv.ParseInt(word, 0, 64); err == nil && !strings.Contains(word, "_") {
			words[i] = strconv.FormatInt(n, 10)
		}
	}
	return strings.Join(words, " ")
}
