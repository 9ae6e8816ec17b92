//go:build !linux

// Package firewalldtest starts a firewalld for a test. It needs Linux.
package firewalldtest
