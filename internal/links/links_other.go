//go:build !linux

// Package links creates and changes network interfaces. It needs Linux.
package links
