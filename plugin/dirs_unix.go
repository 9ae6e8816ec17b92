//go:build !windows

package plugin

// The default directories of the system.
const (
	DefaultConfDir = "/etc/cni/net.d" // of network configurations
	DefaultDir     = "/opt/cni/bin"   // of plugins that are executables
)
