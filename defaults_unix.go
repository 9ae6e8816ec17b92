//go:build !windows

package cni

// Default locations of configurations and plugins. VendorCNIDirTemplate is for
// fmt.Sprintf with a root directory and a vendor's name.
const (
	DefaultNetDir        = "/etc/cni/net.d"
	DefaultCNIDir        = "/opt/cni/bin"
	VendorCNIDirTemplate = "%s/opt/%s/bin"

	defaultStateDir = "/var/lib/cni"
)
