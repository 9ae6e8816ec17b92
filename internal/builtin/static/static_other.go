//go:build !linux

// Package static makes the IPAM plugin "static": addresses that the configuration lists. It needs Linux.
package static
