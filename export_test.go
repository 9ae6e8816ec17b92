package cni

import "github.com/embedcni/cni/plugin"

// WithBuiltins has tests say what is built in.
func WithBuiltins(plugins map[string]plugin.Plugin) Opt {
	return func(c *config) error {
		c.choice.builtIn = func(typ string) plugin.Plugin { return plugins[typ] }
		return nil
	}
}
