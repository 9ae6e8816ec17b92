package plugin

// The default directories of the system.
const (
	DefaultConfDir = `C:\Program Files\containerd\cni\conf` // of network configurations
	DefaultDir     = `C:\Program Files\containerd\cni\bin`  // of plugins that are executables
)
