//go:build !linux

package cni

import "github.com/embedcni/cni/internal/record"

// strayNamespaces returns none: off Linux nothing is kept alive.
func (*snapshot) strayNamespaces() (paths, dirs []string, err error) { return nil, nil, nil }

func (*snapshot) removeUnrecorded(record.ID, string) error { return nil }
