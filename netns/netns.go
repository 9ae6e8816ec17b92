// Package netns creates, pins, opens, enters and removes Linux network
// namespaces.
//
// A namespace is named by a path: a bind mount such as /run/netns/blue, or the link
// /proc/PID/ns/net of a process. Two paths lead to the same namespace exactly if they
// have the same [ID].
//
// An OS thread is in a namespace, not a goroutine. Use [Handle.Do] to enter one: it
// cannot leave another goroutine on a thread in the wrong namespace.
//
// Opening needs read permission only; entering, creating and removing need
// CAP_SYS_ADMIN in the user namespace that owns the namespace or the mounts.
//
// Off Linux every function fails with [ErrNotSupported].
package netns

import (
	"errors"
	"fmt"
	"strconv"
)

var (
	// ErrNotNetNS means that the path exists and is something else than a
	// network namespace: a directory, the file that a pin left behind, a UTS
	// namespace.
	ErrNotNetNS = errors.New("not a network namespace")

	// ErrNotSupported is the error of every operation off Linux. It is an
	// [errors.ErrUnsupported].
	ErrNotSupported = fmt.Errorf("network namespaces need Linux: %w", errors.ErrUnsupported)
)

// ID is the identity of a namespace: device and inode of its file in nsfs.
// IDs are comparable. The kernel may give the ID of a namespace that is gone
// to a new one, so an ID is worth only as much as the reference (a [Handle], a
// pin, a process) that keeps its namespace alive.
type ID struct{ Dev, Ino uint64 }

// String returns "dev:ino", in decimal.
func (id ID) String() string {
	return strconv.FormatUint(id.Dev, 10) + ":" + strconv.FormatUint(id.Ino, 10)
}
