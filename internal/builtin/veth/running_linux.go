package veth

import (
	"context"
	"fmt"
	"time"

	"github.com/embedcni/cni/internal/links"
)

// runTime limits the time until the kernel notices that both ends are up. Only
// old kernels under load need any.
const runTime = 3 * time.Second

// AwaitRunning waits until packets pass the host's end. Since Linux 6.8 they do
// when the first answer arrives.
func (e *Ends) AwaitRunning(ctx context.Context) error {
	if e.Host.Running() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, runTime)
	defer cancel()
	return awaitRunning(ctx, e.OnHost, e.Host.Index)
}

// awaitRunning waits until an interface in the namespace of conn can send.
func awaitRunning(ctx context.Context, conn *links.Conn, index int) error {
	for {
		link, err := conn.LinkByIndex(index)
		if err != nil || link.Running() {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("interface %q is up, but has no carrier (operational state %d): %w", link.Name, link.OperState, context.Cause(ctx))
		case <-time.After(time.Millisecond):
		}
	}
}
