//go:build !linux

package container

import (
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/netns"
)

// Other finds none: off Linux no namespace is open.
func (NetNSOwner) Other(*netns.Handle, bool) (string, error) { return "", nil }

// Untouched is true.
func Untouched(*hostns.NetNS, *netns.Handle) bool { return true }
