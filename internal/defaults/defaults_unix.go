//go:build !windows

// Package defaults has the default directories of the system.
package defaults

const (
	NetDir   = "/etc/cni/net.d" // of configurations
	CNIDir   = "/opt/cni/bin"   // of plugins
	StateDir = "/var/lib/cni"   // of libcni's cache, and of records
)
