//go:build !linux

// Package links makes and changes network interfaces. It needs Linux.
package links
