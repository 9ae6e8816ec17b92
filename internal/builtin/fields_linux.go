package builtin

import (
	"encoding/json"
	"maps"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/misspelt"
)

// configured is a plugin that says how it decodes its configuration. All are.
type configured interface {
	// Configuration returns a value of the type that configurations are decoded into.
	Configuration() any
}

// Misspelt returns the fields of a plugin's configuration that are probably misspelt,
// those of its IPAM plugin included. It knows the fields of the built-in plugins, and
// finds none in the configuration of another plugin. is reports whether the plugin of
// a type has the configuration of the built-in one.
func Misspelt(config json.RawMessage, is func(typ string) bool) []misspelt.Field {
	var named struct {
		Type string
		IPAM struct{ Type string }
	}
	if json.Unmarshal(config, &named) != nil || !is(named.Type) {
		return nil
	}
	names := fields(named.Type)
	if names == nil {
		return nil
	}
	names["ipam"] = nil
	if is(named.IPAM.Type) {
		names["ipam"] = fields(named.IPAM.Type)["ipam"]
	}
	return misspelt.Find(config, names)
}

// fields returns the fields that a plugin of a type can have in its configuration, nil
// if it is not built in.
func fields(typ string) misspelt.Names {
	p, ok := Lookup(typ).(configured)
	if !ok {
		return nil
	}
	names := misspelt.Of(types.PluginConf{})
	maps.Copy(names, misspelt.Of(p.Configuration()))
	if ipam := names["ipam"]; ipam != nil {
		ipam["type"], ipam["name"] = nil, nil
	}
	// The values of these are the caller's, the runtime's, or of the whole list.
	for _, name := range []string{"args", "runtimeConfig", "prevResult", "cniVersions", "disableCheck", "disableGC"} {
		names[name] = nil
	}
	return names
}
