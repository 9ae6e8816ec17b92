//go:build !linux

// Package veth is the common part of the plugins that make a veth pair. It needs
// Linux.
package veth
