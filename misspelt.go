package cni

import "github.com/embedcni/cni/internal/builtin"

// MisspeltField is a field of a loaded configuration that its plugin does not know,
// and that is spelt almost like one that it knows. A plugin ignores such a field. Only
// the types of the built-in plugins are examined, and fields that resemble no known
// field are accepted, because they may be comments or another program's.
type MisspeltField struct {
	Path    string `json:",omitempty"` // of the file; empty for bytes
	Network string
	Plugin  string // its type
	Field   string // "isGatway", "ipam.subnett"
	Nearest string // "isGateway", "ipam.subnet"
}

// findMisspelt returns the fields of the networks that are probably misspelt.
func (s *snapshot) findMisspelt() (all []MisspeltField) {
	builtIn := func(typ string) bool { return !s.choice.IsRegistered(typ) }
	for _, n := range s.networks {
		for _, p := range n.config.Plugins {
			for _, f := range builtin.Misspelt(p.Bytes, builtIn) {
				all = append(all, MisspeltField{
					Path: n.path, Network: n.config.Name, Plugin: p.Network.Type, Field: f.Name, Nearest: f.Nearest,
				})
			}
		}
	}
	return all
}

// logOddities logs what is odd about the loaded configurations.
func (s *snapshot) logOddities() {
	for _, f := range s.skipped {
		s.logger.Warn("configuration file passed over", "path", f.Path, "reason", f.Reason)
	}
	for _, f := range s.misspelt {
		s.logger.Warn("a field is ignored: it is probably misspelt",
			"path", f.Path, "network", f.Network, "plugin", f.Plugin, "field", f.Field, "nearest", f.Nearest)
	}
}
