package tuning

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/plugin"
)

// config is a validated configuration.
type config struct {
	dataDir    string
	sysctls    []sysctl
	attributes attributes
	macText    string // as it was configured, for the result
}

// sysctl is a sysctl to write.
type sysctl struct{ key, file, value string }

// settings are the settings that can be at the top level of a configuration and
// in args.cni.
type settings struct {
	attributes
	Sysctl uniqueKeys `json:"sysctl"`
}

// uniqueKeys is an object without duplicate keys, so that no decoder chooses
// between two values. Decoding a second one adds to the first.
type uniqueKeys map[string]string

// UnmarshalJSON decodes an object of strings.
func (u *uniqueKeys) UnmarshalJSON(data []byte) error {
	var plain map[string]string
	if err := json.Unmarshal(data, &plain); err != nil || plain == nil {
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	seen := make(map[string]bool)
	for n := -1; dec.More(); n++ { // the first token is the brace
		token, err := dec.Token()
		if err != nil {
			return err
		}
		key, ok := token.(string)
		if !ok || n%2 != 0 {
			continue
		}
		if seen[key] {
			return fmt.Errorf("sysctl %q is set twice", key)
		}
		seen[key] = true
	}
	if *u == nil {
		*u = make(uniqueKeys)
	}
	maps.Copy(*u, plain)
	return nil
}

// parse reads the configuration of a request. args.cni overrides the capability
// "mac", which overrides CNI_ARGS, which override the rest.
func parse(r *plugin.Request) (*config, error) {
	var n struct {
		settings
		DataDir       string `json:"dataDir"`
		RuntimeConfig struct {
			Mac string `json:"mac"`
		} `json:"runtimeConfig"`
	}
	if err := r.Decode(&n); err != nil {
		return nil, err
	}
	mac, err := contract.MAC(r)
	if err != nil {
		return nil, err
	}
	n.Mac = cmp.Or(n.RuntimeConfig.Mac, mac, n.Mac)
	var over struct {
		Args struct {
			CNI *settings `json:"cni"`
		} `json:"args"`
	}
	over.Args.CNI = &n.settings // what args.cni lacks stays as it is
	if err := r.Decode(&over); err != nil {
		return nil, err
	}
	c := &config{dataDir: cmp.Or(n.DataDir, defaultDataDir), macText: n.Mac, attributes: n.attributes}
	if c.attributes.Promisc != nil && !*c.attributes.Promisc { // it is never turned off
		c.attributes.Promisc = nil
	}
	if n.Mac != "" {
		hw, err := net.ParseMAC(n.Mac)
		if err != nil {
			return nil, plugin.Errorf(types.ErrInvalidNetworkConfig, "mac: %w", err)
		}
		c.attributes.Mac = hw.String()
	}
	c.sysctls, err = sysctlFiles(n.Sysctl, r.IfName)
	return c, err
}

// sysctlFiles returns the files of the sysctls, sorted by name. "IFNAME" stands
// for the interface.
func sysctlFiles(values map[string]string, ifName string) ([]sysctl, error) {
	if len(values) > 0 && (strings.ContainsRune(ifName, '/') || ifName == "." || ifName == "..") {
		return nil, plugin.Errorf(types.ErrInvalidEnvironmentVariables,
			"CNI_IFNAME is %q, which no interface can be called: sysctls of it would lead to another file", ifName)
	}
	var all []sysctl
	for _, key := range slices.Sorted(maps.Keys(values)) {
		// Insert the interface last, because its name may have dots of its own.
		name := strings.Replace(strings.ReplaceAll(key, ".", "/"), "IFNAME", ifName, 1)
		file := path.Join("/proc/sys", name)
		if !strings.HasPrefix(file, "/proc/sys/net/") {
			return nil, plugin.Errorf(types.ErrInvalidNetworkConfig,
				"sysctl %q is not one of a network namespace: their names begin with \"net.\"", key)
		}
		all = append(all, sysctl{key: key, file: file, value: values[key]})
	}
	return all, nil
}

// allowed returns an error unless a list allows all of the sysctls: a regular expression
// on each line, one of which must match some part of the name.
//
//	^net\.ipv4\.conf\.IFNAME\.[a-z_]*$
//	^net\.core\.somaxconn$
func allowed(list string, sysctls []sysctl) error {
	var all []*regexp.Regexp
	for line := range strings.Lines(list) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		expr, err := regexp.Compile(line)
		if err != nil {
			return err
		}
		all = append(all, expr)
	}
	for _, s := range sysctls {
		if !slices.ContainsFunc(all, func(e *regexp.Regexp) bool { return e.MatchString(s.key) }) {
			return fmt.Errorf("sysctl %q matches no line of it", s.key)
		}
	}
	return nil
}

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
	return contract.From(ctx).Record.Note(factSet, all)
}

// lastSet reads the note. Without a note, as after an executable's ADD, every
// plugin counts as the last.
func lastSet(ctx context.Context) map[string]string {
	var all map[string]string
	if json.Unmarshal(contract.From(ctx).Record.Fact(factSet), &all) != nil {
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
	said, err := contract.Reported(r)
	if err != nil {
		said = &types100.Interface{} // it says nothing
	}
	sysctls := slices.DeleteFunc(c.sysctls, func(s sysctl) bool { return replaced(s.file, s.value) })
	return sysctls, slices.DeleteFunc(c.attributes.list(), func(a attribute) bool {
		return replaced(a.name, a.value) ||
			a.name == "mac" && !contract.SameMAC(said.Mac, a.change.MAC) ||
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
