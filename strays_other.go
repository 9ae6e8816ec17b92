//go:build !linux

package cni

import "github.com/embedcni/cni/internal/record"

// strayNamespaces are none: off Linux nothing is kept.
func (*snapshot) strayNamespaces() (paths, dirs []string, err error) { return nil, nil, nil }

func (*snapshot) removeUnrecorded(record.ID, string) error { return nil }
