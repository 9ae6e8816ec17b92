package audit

import (
	"net/netip"

	"github.com/embedcni/cni/netns"
)

// place is where a namespace is found.
type place struct {
	path  string // of a pin, or /proc/PID/ns/net
	stray bool   // only the library keeps it, for a container on no record
}

// namespaces are those that have a path or a process.
type namespaces struct {
	all       map[netns.ID]place
	addresses map[netip.Addr]string // of those in use: the path of the namespace
	hidden    bool                  // those of some processes cannot be read
}
