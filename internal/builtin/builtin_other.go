//go:build !linux

package builtin

import (
	"github.com/embedcni/cni/internal/kernel/netfilter"
	"github.com/embedcni/cni/plugin"
)

// Loopback returns nil: the plugins need Linux.
func Loopback(string) plugin.Plugin { return nil }

func plugins() map[string]plugin.Plugin { return nil }

// Wants returns no rules.
func Wants(*plugin.Request) ([]netfilter.Rule, error) { return nil, nil }
