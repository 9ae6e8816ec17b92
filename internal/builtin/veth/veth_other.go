//go:build !linux

// Package veth has the plugins bridge and ptp. They need Linux.
package veth
