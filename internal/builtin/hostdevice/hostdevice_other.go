//go:build !linux

// Package hostdevice moves an interface of the host into a container. It needs
// Linux.
package hostdevice
