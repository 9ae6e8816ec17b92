//go:build !linux

package builtin

import "github.com/embedcni/cni/plugin"

// plugins returns nil: the plugins need Linux.
// Loopback returns nil.
func Loopback(string) plugin.Plugin { return nil }

func plugins() map[string]plugin.Plugin { return nil }
