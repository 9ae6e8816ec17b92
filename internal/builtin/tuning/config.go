package tuning

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/plugin"
)

// defaultDataDir is the reference plugin's default directory for backups.
const defaultDataDir = "/run/cni/tuning"

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

// netConf is the part of a request configuration that tuning reads.
type netConf struct {
	settings
	DataDir       string `json:"dataDir"`
	RuntimeConfig struct {
		Mac string `json:"mac"`
	} `json:"runtimeConfig"`
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
	var n netConf
	if err := r.Decode(&n); err != nil {
		return nil, err
	}
	mac, err := caller.MAC(r)
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
