package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/embedcni/cni"
)

// start makes an allocation's namespace, attaches it to its networks, and runs its
// program in it, until that answers over the host's ports. If anything fails, nothing of
// it is left.
func (c *client) start(ctx context.Context, a allocation) error {
	begin := time.Now()
	result, err := c.setup(ctx, a)
	if err != nil {
		return err
	}
	if err = c.runc.run(ctx, a, result.NetNS); err == nil {
		err = c.awaitHealth(ctx, a)
	}
	if err != nil {
		return errors.Join(err, c.stop(context.WithoutCancel(ctx), a.ID, "it did not start"))
	}
	c.out.printf("%s: runs at %s, after %v", a.ID, where(result), time.Since(begin).Round(time.Millisecond))
	return nil
}

// setup attaches the allocation, in a namespace that the library makes and Remove
// deletes.
func (c *client) setup(ctx context.Context, a allocation) (*cni.Result, error) {
	ports, err := a.Job.ports()
	if err != nil {
		return nil, err
	}
	opts := []cni.NamespaceOpts{cni.WithNewNetNS(), cni.WithLabels(a.Job.Labels), cni.WithNetwork("cni-loopback")}
	for i, network := range a.Job.Networks {
		opts = append(opts, cni.WithNetwork(network, cni.WithInterfaceName(fmt.Sprintf("eth%d", i))))
	}
	if len(ports) > 0 {
		opts = append(opts, cni.WithPorts(ports...))
	}
	return c.rt.Setup(ctx, a.ID, "", opts...)
}

// where describes an allocation's primary address and its ports.
func where(result *cni.Result) string {
	text := result.IPv4().IP().String()
	for _, p := range result.Requested {
		text += fmt.Sprintf(", %s on host port %d", p.Label, p.HostPort)
	}
	return text
}

// stop ends an allocation's program and detaches it. It may be called for one of which
// only a part is left.
func (c *client) stop(ctx context.Context, id, reason string) error {
	if err := c.runc.delete(ctx, id); err != nil {
		return err
	}
	err := c.rt.Remove(ctx, id, "")
	if errors.Is(err, cni.ErrPluginNotFound) {
		err = c.cleanUp(ctx, id, err)
	}
	if err != nil {
		return fmt.Errorf("stop %s: %w", id, err)
	}
	c.out.printf("%s: stopped, since %s", id, reason)
	return nil
}

// cleanUp ends an allocation that Remove cannot, because a plugin is gone for good. The
// library removes what the reference plugins leave, without them.
func (c *client) cleanUp(ctx context.Context, id string, why error) error {
	c.out.printf("%s: cannot be removed: %v", id, why)
	all, err := c.rt.Attachments()
	if err != nil {
		return err
	}
	var errs []error
	for _, a := range all {
		if a.ContainerID != id || a.Owner != owner {
			continue
		}
		found, err := c.rt.CleanUp(ctx, cni.CleanUpTarget{ContainerID: id, Network: a.Network, IfName: a.IfName})
		if errs = append(errs, err); err == nil {
			c.out.printf("%s: cleaned up %s of %s, of which %d parts were left", id, a.IfName, a.Network, len(found))
		}
	}
	return errors.Join(errs...)
}
