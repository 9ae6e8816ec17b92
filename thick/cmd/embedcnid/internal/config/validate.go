package config

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/embedcni/cni/guard"
)

// classes are the values of Guard.Classes.
var classes = map[string]guard.Class{"rules": guard.Rules, "links": guard.Links, "routes": guard.Routes}

// Class returns the classes that a guard is to repair; zero for none.
func (g Guard) Class() (all guard.Class) {
	for _, name := range g.Classes {
		all |= classes[name]
	}
	return all
}

// validate returns an error for each value that its key cannot have.
func (c *Config) validate() error {
	all := slices.Concat(c.paths(), c.amounts(), c.choices())
	if c.Owner == "" {
		all = append(all, errors.New("owner: it is empty"))
	}
	if c.Socket != "" && len(c.Socket) > longestSocket {
		all = append(all, fmt.Errorf("socket: the path has %d bytes, and a socket's may have %d", len(c.Socket), longestSocket))
	}
	if c.UID == nobody {
		all = append(all, fmt.Errorf("uid: user %d cannot be told from users of other user namespaces", nobody))
	}
	if err := address(c.HTTP.Address); err != nil {
		all = append(all, fmt.Errorf("http.address: %w", err))
	}
	if c.Kubernetes.Enabled && c.Kubernetes.Node == "" {
		all = append(all, errors.New("kubernetes.node: it is empty; in a pod, have the downward API put spec.nodeName into its environment"))
	}
	return errors.Join(all...)
}

const (
	longestSocket = 107   // unix(7), sun_path
	nobody        = 65534 // /proc/sys/kernel/overflowuid
)

// paths finds those that are not absolute.
func (c *Config) paths() (all []error) {
	for _, p := range []struct {
		key, path string
		optional  bool
	}{
		{"socket", c.Socket, false}, {"queueDir", c.QueueDir, false}, {"stateDir", c.StateDir, false}, {"recordDir", c.RecordDir, true},
		{"hostNetNS", c.HostNetNS, true}, {"readinessFile", c.ReadinessFile, true}, {"confDir", c.ConfDir, true},
		{"pluginRoot", c.PluginRoot, true}, {"kubernetes.kubeconfig", c.Kubernetes.Kubeconfig, true},
	} {
		if !filepath.IsAbs(p.path) && (p.path != "" || !p.optional) {
			all = append(all, fmt.Errorf("%s: %q is not an absolute path", p.key, p.path))
		}
	}
	for _, k := range []struct {
		key  string
		dirs []string
	}{{"pluginDirs", c.PluginDirs}, {"insecureFiles", c.InsecureFiles}} {
		for _, dir := range k.dirs {
			if !filepath.IsAbs(dir) {
				all = append(all, fmt.Errorf("%s: %q is not an absolute path", k.key, dir))
			}
		}
	}
	return all
}

// amounts finds numbers and times that are too small.
func (c *Config) amounts() (all []error) {
	for _, k := range Keys() {
		least := int64(1)
		if slices.Contains([]string{"uid", "shutdownGrace", "healthInterval", "guard.legacyInterval"}, k.Name) {
			least = 0
		}
		var n int64
		switch v := k.at(c).(type) {
		case *int:
			n = int64(*v)
		case *int64:
			n = *v
		case *time.Duration:
			n = int64(*v)
		default:
			continue
		}
		if n < least {
			all = append(all, fmt.Errorf("%s: %s is too small", k.Name, k.Value(c)))
		}
	}
	return all
}

// choices finds words that are none of those that a key has.
func (c *Config) choices() (all []error) {
	one := func(key, value string, of ...string) {
		if !slices.Contains(of, value) {
			all = append(all, fmt.Errorf("%s: %q is none of %s", key, value, strings.Join(of, ", ")))
		}
	}
	one("networks", c.Networks, First, All)
	one("log.format", c.Log.Format, Text, JSON)
	one("log.level", c.Log.Level, "debug", "info", "warn", "error")
	for _, class := range c.Guard.Classes {
		one("guard.classes", class, "rules", "links", "routes")
	}
	if slices.Contains(c.BuiltinPlugins, AllTypes) && len(c.BuiltinPlugins) > 1 {
		all = append(all, fmt.Errorf("builtinPlugins: %q stands alone", AllTypes))
	}
	return all
}

// SlogLevel returns the level of the log.
func (l Log) SlogLevel() (level slog.Level) {
	if err := level.UnmarshalText([]byte(l.Level)); err != nil {
		panic(err) // validate has accepted it
	}
	return level
}

// address checks a TCP address to listen at.
func address(text string) error {
	if text == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(text)
	if err != nil {
		return err
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("%q is no port", port)
	} else if n == 0 {
		return errors.New("port 0 is chosen anew at each start, and nobody could find it")
	}
	return nil
}
