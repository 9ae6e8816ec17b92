//go:build !linux

// Package thread runs functions inside network namespaces. It needs Linux.
package thread
