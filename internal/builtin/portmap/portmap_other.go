//go:build !linux

// Package portmap forwards ports of the host to the container. It needs Linux.
package portmap
