//go:build !linux

// Package ptp makes the plugin "ptp": a container and the host, alone on a link. It needs Linux.
package ptp
