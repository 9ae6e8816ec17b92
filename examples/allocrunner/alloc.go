package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
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
	c.out.printf("%s: runs at %s, after %v", a.ID, c.where(a, result), time.Since(begin).Round(time.Millisecond))
	return nil
}

// setup attaches the allocation, in a namespace that the library makes and Remove
// deletes. A dynamic port that is taken is replaced.
func (c *client) setup(ctx context.Context, a allocation) (result *cni.Result, err error) {
	for range 20 {
		result, err = c.rt.Setup(ctx, a.ID, "", c.options(a)...)
		if taken := (*cni.PortError)(nil); !errors.As(err, &taken) || a.isStatic(taken.HostPort) {
			return result, err
		}
	}
	return nil, err
}

func (c *client) options(a allocation) []cni.NamespaceOpts {
	opts := []cni.NamespaceOpts{cni.WithNewNetNS(), cni.WithLabels(a.Job.Labels)}
	opts = append(opts, cni.WithNetwork("cni-loopback"))
	for i, network := range a.Job.Networks {
		opts = append(opts, cni.WithNetwork(network, cni.WithInterfaceName(fmt.Sprintf("eth%d", i))))
	}
	values := map[string]string{"job": a.Job.Name}
	var mappings []cni.PortMapping
	for _, p := range a.Job.Ports {
		on := p.Static
		if on == 0 {
			on = firstDynamic + rand.IntN(dynamic)
		}
		values[portKey+p.Label] = strconv.Itoa(on)
		mappings = append(mappings, cni.PortMapping{HostPort: int32(on), ContainerPort: int32(p.To), Protocol: "tcp"})
	}
	if len(mappings) > 0 {
		opts = append(opts, cni.WithCapabilityPortMap(mappings))
	}
	return append(opts, cni.WithMetadata(values))
}

// The range of dynamic ports is below that of the kernel, net.ipv4.ip_local_port_range.
const firstDynamic, dynamic = 20000, 10000

// portKey begins the metadata that has the host's port for a label.
const portKey = "port."

// isStatic reports whether the job asks for that port of the host.
func (a allocation) isStatic(hostPort int) bool {
	for _, p := range a.Job.Ports {
		if p.Static == hostPort {
			return true
		}
	}
	return false
}

// ports returns the ports of the host that an allocation has, by label, from its record.
func (c *client) ports(id string) (map[string]int, error) {
	all, err := c.rt.Attachments()
	if err != nil {
		return nil, err
	}
	ports := map[string]int{}
	for _, a := range all {
		if a.ContainerID != id || a.Owner != owner {
			continue
		}
		for key, value := range a.Metadata {
			if label, ok := strings.CutPrefix(key, portKey); ok {
				if ports[label], err = strconv.Atoi(value); err != nil {
					return nil, fmt.Errorf("port %q of %s: %w", label, id, err)
				}
			}
		}
	}
	return ports, nil
}

// where describes an allocation's primary address and its ports.
func (c *client) where(a allocation, result *cni.Result) string {
	text := result.IPv4().IP().String()
	ports, err := c.ports(a.ID)
	if err != nil {
		return text + ": " + err.Error()
	}
	for _, p := range a.Job.Ports {
		text += fmt.Sprintf(", %s on host port %d", p.Label, ports[p.Label])
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
