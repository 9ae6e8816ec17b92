package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni/netns"
)

// settle waits until the kernel has cleaned up the removed namespaces. The
// kernel does so in the background, one namespace after the other. Settle
// therefore makes one more namespace that holds one end of a pair, and removes
// it. When the other end disappears, all earlier namespaces are done.
func settle(ctx context.Context, runDir string) error {
	const outside = "settle0"
	path := filepath.Join(runDir, "settle")
	ns, err := netns.Create(path)
	if err != nil {
		return err
	}
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: outside}, PeerName: "settle1",
		PeerNamespace: netlink.NsFd(ns.File().Fd())}
	if err := errors.Join(netlink.LinkAdd(pair), netns.Remove(path), ns.Close()); err != nil {
		return fmt.Errorf("wait for namespaces to be gone: %w", err)
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := netlink.LinkByName(outside)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for namespaces to be gone: %w", context.Cause(ctx))
		case <-tick.C:
		}
	}
}
