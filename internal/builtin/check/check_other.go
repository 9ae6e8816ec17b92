//go:build !linux

// Package check is CHECK for the built-in plugins. It needs Linux.
package check
