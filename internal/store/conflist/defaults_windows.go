package conflist

// The default directories of the system.
const (
	NetDir   = `C:\Program Files\containerd\cni\conf` // of configurations
	CNIDir   = `C:\Program Files\containerd\cni\bin`  // of plugins
	StateDir = `C:\ProgramData\cni`                   // of libcni's cache, and of records
)
