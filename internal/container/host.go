package container

import "fmt"

// EnterHost changes to the host namespace in which the record says that plugins
// ran. It differs from the caller's if BuildKit's detached one, a rootless one
// or WithHostNetNS is in use. In the caller's namespace plugins would find
// neither the rules nor the interfaces, or a neighbour's with the same address.
// mustStop means that the caller wants the container gone.
func (c *Container) EnterHost(mustStop bool) error {
	rec := c.Record
	if rec.Host == "" || c.Rebooted || rec.Host == c.Host.String() {
		return nil
	}
	found, certain, err := c.in.Hosts.Find(rec, c.in.HostNetNS)
	if err != nil {
		return fmt.Errorf("host network namespace of container %s: %w", c.ID, err)
	}
	if found != nil {
		c.logClose(c.leaveHost())
		c.callers, c.Host = c.Host, found
		return nil
	}
	// If the container's namespace is not found either, a Remove by the caller
	// can harm nothing alive, and it must be possible to stop a container.
	if certain || mustStop && c.Gone() {
		c.HostGone = true
		c.in.Logger.Warn("the host network namespace of the container is gone, and with it the container's interfaces and rules",
			"container", c.ID, "namespace", rec.Host, "path", rec.HostPath)
		return nil
	}
	return fmt.Errorf("container %s was attached from network namespace %s, which cannot be found from %s, where this call would run plugins; "+
		"call from there, or name it with WithHostNetNS: %w", c.ID, c.RecordedHost(), c.currentHost(), ErrHostNetNS)
}

func (c *Container) currentHost() string { return described(c.Host.String(), c.hostPath()) }

func (c *Container) hostPath() string { return c.in.Hosts.PathTo(c.Host, c.in.HostNetNS) }

// sameHost refuses to add to a container that is attached from another host
// namespace, because a record has only one.
func (c *Container) sameHost() error {
	if c.Record == nil || c.Record.IsEmpty() || c.Record.Host == "" || c.Record.Host == c.Host.String() {
		return nil
	}
	return fmt.Errorf("container %s is attached from network namespace %s, and this call would run plugins in %s: %w",
		c.ID, c.RecordedHost(), c.currentHost(), ErrHostNetNS)
}
