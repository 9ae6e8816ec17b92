package warm

import (
	"bytes"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/netns"
)

// Interfaces are the interfaces of an attachment as they were made: those on the
// host, which cannot exist without the container's, or if there are none the
// container's. Comparing them takes one message to the kernel.
type Interfaces struct {
	inside bool // they are the container's
	names  []string
	links  []links.Link // by name; without an index if there was none
}

// See reads the interfaces with these names on the host, or if there are none
// ifName in the container. It returns ErrDead if an interface that a plugin has
// just made on the host is already gone, or is no longer a port of its bridge.
func See(host *hostns.NetNS, container *netns.Handle, names []string, ifName string) (*Interfaces, error) {
	s := &Interfaces{inside: len(names) == 0, names: names}
	if s.inside && ifName != "lo" {
		s.names = []string{ifName}
	}
	var err error
	if s.links, err = s.now(host, container); err != nil || s.inside {
		return s, err // a plugin may report an interface that it has not made
	}
	bridge := 0
	for i, l := range s.links {
		switch {
		case l.Index == 0:
			return nil, fmt.Errorf("interface %s is gone: %w", s.names[i], ErrDead)
		case l.Kind == "bridge":
			bridge = l.Index
		case l.Kind == "veth" && l.Port.Master != bridge:
			return nil, fmt.Errorf("interface %s is no port of its bridge: %w", l.Name, ErrDead)
		}
	}
	return s, nil
}

// now reads the interfaces with one system call.
func (s *Interfaces) now(host *hostns.NetNS, container *netns.Handle) ([]links.Link, error) {
	if len(s.names) == 0 {
		return nil, nil
	}
	ns := host.Handle
	if s.inside {
		ns = container
	}
	c, err := host.Conns.Borrow(ns)
	if err != nil {
		return nil, err
	}
	r := c.Requests()
	found := make([]*links.Link, len(s.names))
	for i, name := range s.names {
		found[i] = r.Link(name, unix.ENODEV)
	}
	err = errors.Join(r.Send(), c.Close())
	all := make([]links.Link, len(found))
	for i, l := range found {
		all[i] = *l
	}
	return all, err
}

// Unchanged returns ErrDead unless the interfaces are still as See found them.
func (s *Interfaces) Unchanged(host *hostns.NetNS, container *netns.Handle) error {
	now, err := s.now(host, container)
	if err != nil {
		return err
	}
	for i, l := range now {
		if !alike(s.links[i], l) {
			return fmt.Errorf("interface %s is not as it was made: %w", s.names[i], ErrDead)
		}
	}
	return nil
}

// alike compares the properties that do not change by themselves. A bridge's
// address and carrier change with its ports.
func alike(was, is links.Link) bool {
	if was.Index != is.Index || was.Up() && !is.Up() {
		return false
	}
	carrier := was.Flags&unix.IFF_LOWER_UP != 0 && is.Flags&unix.IFF_LOWER_UP == 0
	return was.Kind == "bridge" ||
		!carrier && was.Port.Master == is.Port.Master && was.Peer == is.Peer && bytes.Equal(was.MAC, is.MAC)
}
