//go:build !windows

package cni

const (
	DefaultNetDir = "/etc/cni/net.d" // of configurations
	DefaultCNIDir = "/opt/cni/bin"   // of plugins
)
