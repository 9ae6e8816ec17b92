//go:build !linux

package builtin

import "github.com/embedcni/cni/plugin"

// plugins returns nil: the plugins need Linux.
func plugins() map[string]plugin.Plugin { return nil }
