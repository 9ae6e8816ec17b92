package veth

import (
	"context"
	"fmt"
	"time"
)

// runTime limits the time until the kernel notices that both ends are up. Only
// old kernels under load need any.
const runTime = 3 * time.Second

// AwaitRunning waits until packets pass the host's end. Since Linux 6.8 they do
// when the first answer arrives.
func (e *Ends) AwaitRunning(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, runTime)
	defer cancel()
	for !e.Host.Running() {
		link, err := e.OnHost.LinkByIndex(e.Host.Index)
		if err != nil || link.Running() {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("interface %q is up, but has no carrier (operational state %d): %w", link.Name, link.OperState, context.Cause(ctx))
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}
