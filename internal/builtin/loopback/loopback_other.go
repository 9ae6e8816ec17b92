//go:build !linux

// Package loopback sets the loopback interface up. It needs Linux.
package loopback
