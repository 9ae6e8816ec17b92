//go:build !linux

// Package bridge makes the plugin "bridge": a container on a bridge of the host. It needs Linux.
package bridge
