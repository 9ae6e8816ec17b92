package cni

// MountsArePrivate has tests ask what NewPool warns of.
func MountsArePrivate(dir, first string) (bool, error) { return mountsArePrivate(dir, first) }
