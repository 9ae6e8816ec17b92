//go:build !windows

package conflist

// The default directories of the system.
const (
	NetDir   = "/etc/cni/net.d" // of configurations
	CNIDir   = "/opt/cni/bin"   // of plugins
	StateDir = "/var/lib/cni"   // of libcni's cache, and of records
)
