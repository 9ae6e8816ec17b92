//go:build !linux

// Package lan has the plugins macvlan and host-device. They need Linux.
package lan
