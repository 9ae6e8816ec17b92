package tuning

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"

	types100 "github.com/containernetworking/cni/pkg/types/100"

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

// own returns the settings without those that a later plugin has changed, by the
// note, or by the result as far as it contains them.
func (c *config) own(r *plugin.Request, last map[string]string) ([]sysctl, []attribute) {
	replaced := func(key, value string) bool {
		noted, ok := last[key]
		return ok && noted != value
	}
	said, err := compare.Reported(r)
	if err != nil {
		said = &types100.Interface{} // it says nothing
	}
	sysctls := slices.DeleteFunc(c.sysctls, func(s sysctl) bool { return replaced(s.file, s.value) })
	return sysctls, slices.DeleteFunc(c.attributes.list(), func(a attribute) bool {
		return replaced(a.name, a.value) ||
			a.name == "mac" && !compare.SameMAC(said.Mac, a.change.MAC) ||
			a.name == "mtu" && said.Mtu != 0 && said.Mtu != a.change.MTU
	})
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
