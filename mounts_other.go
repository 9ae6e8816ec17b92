//go:build !linux

package cni

// mountsArePrivate is false: off Linux nothing is mounted.
func mountsArePrivate(string, string) (bool, error) { return false, nil }

const firstMountNS = ""
