//go:build !linux

// Package nettest makes network namespaces for tests. It needs Linux.
package nettest
