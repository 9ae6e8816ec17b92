package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/netns"
)

// container is a named network namespace. It needs no process: CNI only knows
// the namespace.
type container struct {
	name   string
	ports  []cni.PortMapping
	ns     *netns.Handle
	result *cni.Result
}

// path is where the namespace is pinned.
func (c *container) path() string { return netnsDir + "/" + c.name }

// attachAll makes the containers' namespaces and attaches them to all networks.
func attachAll(ctx context.Context, out io.Writer, rt *cni.Runtime, containers ...*container) error {
	for _, c := range containers {
		var err error
		if c.ns, err = netns.Create(c.path()); err != nil {
			return err
		}
		begin := time.Now()
		if c.result, err = rt.Setup(ctx, c.name, c.path(), cni.WithCapabilityPortMap(c.ports)); err != nil {
			return fmt.Errorf("attach %s: %w", c.name, err)
		}
		fmt.Fprintf(out, "attached %s to %d networks in %s\n", c.name, len(c.result.Networks), milliseconds(time.Since(begin)))
	}
	return nil
}

// removeAll detaches the containers, then removes their namespaces. It
// continues after an error, so that the rest is removed too.
func removeAll(ctx context.Context, out io.Writer, rt *cni.Runtime, containers ...*container) error {
	var errs []error
	for _, c := range containers {
		begin := time.Now()
		if err := rt.Remove(ctx, c.name, c.path()); err != nil {
			errs = append(errs, fmt.Errorf("detach %s: %w", c.name, err))
		} else {
			fmt.Fprintf(out, "detached %s in %s\n", c.name, milliseconds(time.Since(begin)))
		}
		if c.ns != nil {
			errs = append(errs, netns.Remove(c.path()), c.ns.Close())
		}
	}
	return errors.Join(errs...)
}

// callTimes adds up the plugins' durations by network. Networks are attached in
// parallel, so calls arrive concurrently.
type callTimes struct {
	mu    sync.Mutex
	total map[attachment]time.Duration
}

type attachment struct{ container, network string }

// observe records one plugin call. It runs after each call.
func (t *callTimes) observe(_ context.Context, e cni.Event) {
	if e.Operation != "ADD" {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.total == nil {
		t.total = map[attachment]time.Duration{}
	}
	t.total[attachment{e.ContainerID, e.Network}] += e.Duration
}

func (t *callTimes) of(container, network string) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.total[attachment{container, network}]
}
