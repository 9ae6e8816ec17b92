//go:build !linux

// Package ptp is the plugin "ptp": it connects a container to the host by a veth
// pair. It needs Linux.
package ptp
