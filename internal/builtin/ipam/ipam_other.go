//go:build !linux

// Package ipam delegates to IPAM plugins. It needs Linux.
package ipam
