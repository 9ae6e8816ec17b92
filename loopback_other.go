//go:build !linux

package cni

// noteLo does nothing off Linux.
func (*attachment) noteLo() error { return nil }

// setLoUp does nothing off Linux.
func (*attachment) setLoUp() error { return nil }
