package container

import (
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/record"
)

// NetNSOwner finds the container that a network namespace belongs to, in the records and in
// libcni's cache: any except one. It is for calls that have only a path, which may lead to
// another container's namespace by now.
type NetNSOwner struct {
	ID       record.ID // the excepted container
	PluginID record.PluginID
	Boot     string // of the machine
	Records  *record.Store
	CacheDir string // libcni's
	Host     *hostns.NetNS
	// Pin returns the path at which the namespace of a record is kept, by the name
	// of the record's file.
	Pin func(file string) string
}
