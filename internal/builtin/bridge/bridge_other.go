//go:build !linux

// Package bridge is the plugin "bridge": it connects a container to a bridge of
// the host. It needs Linux.
package bridge
