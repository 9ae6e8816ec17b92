package iptables

import (
	"context"
	"fmt"
	"os"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/plainfile"
	"github.com/embedcni/cni/netns"
)

// LockNamespace takes the lock of a network namespace, nil for the calling thread's: the
// lock on its file, which every process of the machine sees. It waits until the context
// ends. The lock ends with the process.
func LockNamespace(ctx context.Context, ns *netns.Handle, exclusive bool) (unlock func() error, err error) {
	path := "/proc/thread-self/ns/net"
	if ns != nil {
		path = fmt.Sprintf("/proc/thread-self/fd/%d", ns.File().Fd()) // opened anew: the lock is the opening's
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("lock the network namespace: %w", err)
	}
	if err := plainfile.Flock(ctx, f, exclusive); err != nil {
		return nil, joined.Errors(fmt.Errorf("lock the network namespace for its shared rules: %w", err), f.Close())
	}
	return f.Close, nil
}
