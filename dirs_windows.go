package cni

const (
	DefaultNetDir = `C:\Program Files\containerd\cni\conf` // of configurations
	DefaultCNIDir = `C:\Program Files\containerd\cni\bin`  // of plugins
)
