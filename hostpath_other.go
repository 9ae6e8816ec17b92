//go:build !linux

package cni

import "github.com/embedcni/cni/internal/record"

// hostPaths has nothing to find off Linux.
type hostPaths struct{}

func newHostPaths() *hostPaths { return &hostPaths{} }

func (*operation) hostPath() string { return "" }

func (*operation) findHost(*record.Record) (*hostNetNS, bool, error) { return nil, false, nil }
