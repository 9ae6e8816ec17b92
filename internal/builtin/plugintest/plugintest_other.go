//go:build !linux

// Package plugintest runs in-process plugins and the reference plugins side by
// side, for tests. It needs Linux.
package plugintest
