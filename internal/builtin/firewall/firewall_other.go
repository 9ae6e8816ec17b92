//go:build !linux

// Package firewall lets a container's packets be forwarded. It needs Linux.
package firewall
