package builtin

import (
	"sync"

	"github.com/embedcni/cni/plugin"
)

// New returns a [Lookup] that answers with the same plugin each time. That is
// what a runtime wants: what a plugin remembers from one call to the next, as
// host-local does the addresses that are in use, is worth milliseconds, and is
// lost with the plugin.
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
