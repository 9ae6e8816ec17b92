package cni

// Default locations of configurations and plugins.
const (
	DefaultNetDir = `C:\Program Files\containerd\cni\conf`
	DefaultCNIDir = `C:\Program Files\containerd\cni\bin`

	defaultStateDir = `C:\ProgramData\cni`
)
