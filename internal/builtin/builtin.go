package builtin

import (
	"sync"

	"github.com/embedcni/cni/plugin"
)

// New returns a [Lookup] that returns the same plugin each time. A runtime
// should use it: a plugin's memory between calls, such as host-local's of the
// addresses in use, saves milliseconds, and is lost with the plugin.
func New() func(typ string) plugin.Plugin {
	var mu sync.Mutex
	known := make(map[string]plugin.Plugin)
	return func(typ string) plugin.Plugin {
		mu.Lock()
		defer mu.Unlock()
		p, ok := known[typ]
		if !ok {
			if p = Lookup(typ); p != nil {
				known[typ] = p
			}
		}
		return p
	}
}
