//go:build !linux

package cni

import "github.com/embedcni/cni/internal/hostns"

func (*snapshot) reap(*hostns.NetNS, bool) {}
