package builtin

import "github.com/embedcni/cni/plugin"

// New returns a function that returns the plugin of a type, or nil: the same one each time.
// A runtime keeps it: a plugin's memory between calls, such as host-local's of the
// addresses in use, saves milliseconds, and is lost with the plugin.
func New() func(typ string) plugin.Plugin {
	all := plugins()
	return func(typ string) plugin.Plugin { return all[typ] }
}
