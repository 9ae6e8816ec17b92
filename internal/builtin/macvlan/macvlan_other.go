//go:build !linux

// Package macvlan gives a container an interface of its own on a network that
// the host has. It needs Linux.
package macvlan
