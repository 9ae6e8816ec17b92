//go:build !linux

package cnitest

import "github.com/embedcni/cni/netns"

func prepareNetNS(*netns.Handle, bool) error { return netns.ErrNotSupported }

func unmountBelow(string) error { return nil }
