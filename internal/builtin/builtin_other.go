//go:build !linux

package builtin

import "github.com/embedcni/cni/plugin"

// Lookup returns nil: the plugins need Linux.
func Lookup(string) plugin.Plugin { return nil }
