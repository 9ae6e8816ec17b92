//go:build !linux

// Package ipam delegates to IPAM plugins, which needs Linux, and has the lock of host-local.
package ipam
