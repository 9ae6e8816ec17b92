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

// container is a network namespace with a name. There is no process in it: a
// namespace is all that CNI knows of a container.
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

// removeAll detaches the containers, then removes their namespaces. It goes on
// after an error, as what comes after it must not stay because of it.
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

// callTimes adds up how long the plugins of a network took to attach a
// container. Networks are attached in parallel, so calls arrive at any time.
type callTimes struct {
	mu    sync.Mutex
	total map[attachment]time.Duration
}

type attachment struct{ container, network string }

// observe is told of each plugin's call when it is over.
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
