package backend

import (
	"encoding/json"
	"strings"

	"github.com/embedcni/cni/thick/server"
)

// keys are those of Multus' configurations, of its shim and of its daemon, that a request's
// configuration has without the effect that they have there. Keys that are not here are
// honoured, or are the CNI specification's. docs/operating.md has all.
var keys = map[string]struct {
	refused bool // if it is set: what it asks for must not be left out
	instead string
}{
	"defaultnetworks":       {true, "load them with the daemon's own networks"},
	"auxiliarycnichainname": {true, "write its plugins into the list of the default network"},

	"ipam":                {false, "each network has its own"},
	"dns":                 {false, "each network has its own"},
	"clusternetwork":      {false, "the default network is the first that the daemon has loaded"},
	"systemnamespaces":    {false, "no network is left out in a namespace"},
	"kubeconfig":          {false, "the daemon's own configuration names the API server"},
	"confdir":             {false, "the daemon's own configuration names the directory"},
	"cnidir":              {false, "the daemon has a state directory"},
	"bindir":              {false, "the daemon's own configuration names the plugin directories"},
	"logfile":             {false, "the daemon logs to its standard error"},
	"loglevel":            {false, "the daemon's own configuration has a level"},
	"logtostderr":         {false, "the daemon logs to its standard error"},
	"logoptions":          {false, "the daemon logs to its standard error"},
	"retrydeleteonerror":  {false, "a DEL that fails always stays on record, and is tried again"},
	"cniconfigdir":        {false, "it is of Multus' daemon"},
	"multusconfigfile":    {false, "it is of Multus' daemon"},
	"multusmastercni":     {false, "it is of Multus' daemon"},
	"multusautoconfigdir": {false, "it is of Multus' daemon"},
	"forcecniversion":     {false, "it is of Multus' daemon"},
	"overridenetworkname": {false, "it is of Multus' daemon"},
	"chrootdir":           {false, "it is of Multus' daemon"},
	"pernodecertificate":  {false, "it is of Multus' daemon"},
	"connectionlimit":     {false, "it is of Multus' daemon"},
	"metricsport":         {false, "it is of Multus' daemon"},
	"enablepprof":         {false, "it is of Multus' daemon"},
	"socketdir":           {false, "it is of Multus' daemon"},
}

// checkKeys refuses a configuration that asks for what this package does not do, and logs once
// each key that has no effect.
func (b *Backend) checkKeys(r *server.Request) error {
	var fields map[string]any
	if err := json.Unmarshal(r.Config, &fields); err != nil {
		return invalid("%v", err)
	}
	for name, value := range fields {
		folded := strings.ToLower(name) // as encoding/json compares
		key, known := keys[folded]
		if !known || isUnset(value) {
			continue
		}
		if key.refused {
			return invalid("%s is not supported: %s", name, key.instead)
		}
		if _, twice := b.warned.LoadOrStore(folded, true); !twice {
			b.options.Logger.Warn("a key of the configuration has no effect", "key", name, "network", r.Network, "instead", key.instead)
		}
	}
	return nil
}

// isUnset reports whether a value asks for nothing.
func isUnset(value any) bool {
	switch v := value.(type) {
	case nil:
		return true
	case bool:
		return !v
	case string:
		return v == ""
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	}
	return false
}
