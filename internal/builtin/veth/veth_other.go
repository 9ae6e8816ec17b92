//go:build !linux

// Package veth has what the plugins that make a veth pair have in common. It needs Linux.
package veth
