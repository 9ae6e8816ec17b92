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
	Sysctl   uniqueKeys `json:"sysctl"`
	Mac      *string    `json:"mac"`
	Promisc  *bool      `json:"promisc"`
	Mtu      *int       `json:"mtu"`
	Allmulti *bool      `json:"allmulti"`
	TxQLen   *int       `json:"txQLen"`
}

// netConf is the part of a request configuration that tuning reads.
type netConf struct {
	settings
	DataDir       string `json:"dataDir"`
	RuntimeConfig struct {
		Mac string `json:"mac"`
	} `json:"runtimeConfig"`
	Args struct {
		CNI settings `json:"cni"`
	} `json:"args"`
}

// envArgs are CNI_ARGS. The fields have the names of the arguments.
type envArgs struct {
	types.CommonArgs
	MAC types.UnmarshallableString
}

// uniqueKeys is an object without duplicate keys, so that no decoder chooses
// between two values.
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
	*u = plain
	return nil
}

// parse reads the configuration of a request. args.cni overrides the capability
// "mac", which overrides CNI_ARGS, which override the rest.
func parse(r *plugin.Request) (*config, error) {
	var n netConf
	if err := r.Decode(&n); err != nil {
		return nil, err
	}
	var e envArgs
	if err := types.LoadArgs(r.Args, &e); err != nil {
		return nil, plugin.Errorf(types.ErrInvalidEnvironmentVariables, "CNI_ARGS: %w", err)
	}
	mac := cmp.Or(n.RuntimeConfig.Mac, string(e.MAC), first(n.Mac))
	args := n.Args.CNI
	if args.Mac != nil {
		mac = *args.Mac
	}
	c := &config{dataDir: cmp.Or(n.DataDir, defaultDataDir), macText: mac, attributes: attributes{
		Mtu:      first(args.Mtu, n.Mtu),
		Allmulti: oneOf(args.Allmulti, n.Allmulti),
		TxQLen:   oneOf(args.TxQLen, n.TxQLen),
	}}
	if promisc := first(args.Promisc, n.Promisc); promisc { // it is never turned off
		c.attributes.Promisc = &promisc
	}
	if mac != "" {
		hw, err := net.ParseMAC(mac)
		if err != nil {
			return nil, plugin.Errorf(types.ErrInvalidNetworkConfig, "mac: %w", err)
		}
		c.attributes.Mac = hw.String()
	}
	sysctls := make(map[string]string)
	maps.Copy(sysctls, n.Sysctl)
	maps.Copy(sysctls, args.Sysctl)
	var err error
	c.sysctls, err = sysctlFiles(sysctls, r.IfName)
	return c, err
}

// oneOf returns the first pointer that is not nil.
func oneOf[T any](pointers ...*T) *T {
	for _, p := range pointers {
		if p != nil {
			return p
		}
	}
	return nil
}

// first returns the value of the first pointer that is not nil.
func first[T any](pointers ...*T) (value T) {
	if p := oneOf(pointers...); p != nil {
		value = *p
	}
	return value
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

// parseAllowlist reads the file that lists the allowed sysctls: a regular
// expression on each line, one of which must match some part of the name.
//
//	^net\.ipv4\.conf\.IFNAME\.[a-z_]*$
//	^net\.core\.somaxconn$
func parseAllowlist(text string) ([]*regexp.Regexp, error) {
	var list []*regexp.Regexp
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		expr, err := regexp.Compile(line)
		if err != nil {
			return nil, err
		}
		list = append(list, expr)
	}
	return list, nil
}

// allowed returns an error unless the list allows all of them.
func allowed(list []*regexp.Regexp, sysctls []sysctl) error {
	for _, s := range sysctls {
		if !slices.ContainsFunc(list, func(e *regexp.Regexp) bool { return e.MatchString(s.key) }) {
			return fmt.Errorf("sysctl %q matches no line of it", s.key)
		}
	}
	return nil
}
