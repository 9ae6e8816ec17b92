package builtin

import "github.com/embedcni/cni/plugin"

// New returns a [Lookup] that returns the same plugin each time. A runtime
// should use it: a plugin's memory between calls, such as host-local's of the
// addresses in use, saves milliseconds, and is lost with the plugin.
func New() func(typ string) plugin.Plugin {
	all := plugins()
	return func(typ string) plugin.Plugin { return all[typ] }
}

// Lookup returns the plugin of a type, or nil. It is a new one each time, with
// empty memory; see [New].
func Lookup(typ string) plugin.Plugin { return plugins()[typ] }
