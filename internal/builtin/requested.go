package builtin

import (
	"net/netip"

	"github.com/embedcni/cni/internal/builtin/hostlocal"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/plugin"
)

// Requested returns the addresses that a plugin's request asks its IPAM plugin for, if
// that is host-local, and the directory in which it has a file for each.
func Requested(ipam string, r *plugin.Request) (dir string, addrs []netip.Addr) {
	if ipam != known.HostLocal {
		return "", nil
	}
	return hostlocal.Requested(r)
}
