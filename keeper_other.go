//go:build !linux

package cni

import "github.com/embedcni/cni/internal/record"

// keeper has nothing to keep: off Linux a path means what its platform wants.
type keeper struct{}

func newKeeper(string) *keeper { return &keeper{} }

func (*keeper) where(record.ID) (string, error) { return "", nil }

func (*keeper) discard(string) error { return nil }

func (*keeper) mounts(record.ID) bool { return false }

func (*keeper) keeps(string) string { return "" }

func (*keeper) openPath(record.ID) string { return "" }

func (op *operation) identify() (record.NetNS, error) { return record.NetNS{Path: op.path}, nil }

func (*operation) sameNetNS(string) error { return nil }

func (*operation) pin(record.NetNS) error { return nil }

func (*operation) unpin() error { return nil }

func (*operation) keptHere() bool { return true }
