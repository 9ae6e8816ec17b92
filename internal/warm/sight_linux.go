package warm

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/footprint"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/internal/nsfind"
	"github.com/embedcni/cni/internal/sweep"
	"github.com/embedcni/cni/netns"
)

// Sight is the state of an attachment after it was made ahead of time: its
// interfaces, its rules, and its addresses in zones of firewalld. Comparing it takes
// one message for the interfaces, one for the rules as long as no rule on the host
// has changed, and one for each address in firewalld.
type Sight struct {
	interfaces *interfaces
	rules      *netfilter.Witness // nil: no plugin makes any
	zoned      []footprint.Zoned  // addresses that firewalld had
}

// See reads the state of an attachment that was just made. t describes it.
func See(ctx context.Context, at Place, t sweep.Target) (*Sight, error) {
	var names []string
	for _, l := range t.Interface.HostEnds {
		names = append(names, l.Name)
	}
	s := &Sight{}
	var err error
	if s.interfaces, err = see(at.Host, at.Container, names, t.IfName); err != nil {
		return nil, err
	}
	if t.Rules.Possible {
		t.How.Thorough = false // its addresses are known
		if s.rules, err = netfilter.Watch(ctx, netfilter.Open(t.Host, t.Filters), t.RulesTarget()); err != nil {
			return nil, err
		}
		s.zoned, err = at.firewalld().Has(ctx, t.Zoned(t.Siblings.Addresses))
	}
	return s, err
}

// Unchanged returns ErrDead unless the state is as See found it.
func (s *Sight) Unchanged(ctx context.Context, at Place) error {
	if err := s.interfaces.unchanged(at.Host, at.Container); err != nil || s.rules == nil {
		return err
	}
	intact, err := s.rules.Intact(ctx, netfilter.Open(at.Host.Handle, at.Filters))
	if err == nil && !intact {
		err = fmt.Errorf("rules of the packet filter are gone: %w", ErrDead)
	}
	if err != nil {
		return err
	}
	found, err := at.firewalld().Has(ctx, s.zoned)
	if err == nil && len(found) < len(s.zoned) {
		err = fmt.Errorf("addresses are gone from firewalld: %w", ErrDead)
	}
	return err
}

func (p Place) firewalld() sweep.Firewalld {
	return sweep.Firewalld{Bus: p.Firewalld, Host: p.Host.Handle}
}

// Exists reports whether the mount that keeps a namespace still exists.
func Exists(path string, ns netns.ID) bool {
	id, err := nsfind.Identify(path)
	return err == nil && id == ns
}

// interfaces are the interfaces of an attachment as they were made: those on the
// host, which cannot exist without the container's, or if there are none the
// container's. Comparing them takes one message to the kernel.
type interfaces struct {
	inside bool // they are the container's
	names  []string
	links  []links.Link // by name; without an index if there was none
}

// see reads the interfaces with these names on the host, or if there are none
// ifName in the container. It returns ErrDead if an interface that a plugin has
// just made on the host is already gone, or is no longer a port of its bridge.
func see(host *hostns.NetNS, container *netns.Handle, names []string, ifName string) (*interfaces, error) {
	s := &interfaces{inside: len(names) == 0, names: names}
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
func (s *interfaces) now(host *hostns.NetNS, container *netns.Handle) ([]links.Link, error) {
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

// unchanged returns ErrDead unless the interfaces are still as see found them.
func (s *interfaces) unchanged(host *hostns.NetNS, container *netns.Handle) error {
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
