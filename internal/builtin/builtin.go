package builtin

import (
	"sync"

	"github.com/embedcni/cni/plugin"
)

// New returns a [Lookup] that answers with the same plugin each time. A
// runtime wants that: the memory of a plugin from one call to the next, as of
// host-local for the addresses in use, is worth milliseconds, and is lost with
// the plugin.
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
