//go:build !linux

// Package macvlan gives a container an interface of its own on a network of the
// host. It needs Linux.
package macvlan
