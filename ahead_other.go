//go:build !linux

package cni

import "github.com/embedcni/cni/internal/hostns"

// pluginsRun returns false. No rules are made ahead on other systems than Linux.
func pluginsRun(*hostns.NetNS, ...string) (bool, error) { return false, nil }
