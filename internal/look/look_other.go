//go:build !linux

// Package look reads a network namespace once. It needs Linux.
package look
