//go:build !linux

// Package static is the IPAM plugin "static": the configuration lists the
// addresses. It needs Linux.
package static
