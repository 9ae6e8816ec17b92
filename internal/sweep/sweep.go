// Package sweep finds and removes the leftovers of one attachment: addresses in zones
// of firewalld, rules of the packet filter, interfaces, the device that bandwidth
// shapes with, settings that tuning has not restored, host-local's address files, and
// connections that conntrack still sends to its addresses.
//
// It goes by the attachment's [footprint.Footprint], never by pattern: nothing of a
// neighbour's is looked at.
package sweep

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	"github.com/embedcni/cni/internal/firewalld"
	"github.com/embedcni/cni/internal/footprint"
	"github.com/embedcni/cni/internal/ipamdir"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/netns"
)

// Target is an attachment, and where and how to look for its leftovers.
type Target struct {
	footprint.Footprint

	Host      *netns.Handle  // where its plugins ran; nil if FilesOnly
	Container *netns.Handle  // nil if the namespace is gone
	Firewalld *firewalld.Bus // on which firewalld is reached

	Filters netfilter.Options // of the packet filters that are searched
	Conns   *links.Conns      // open sockets; nil: each Find opens its own

	Siblings netfilter.Siblings // attachments of the container that stay
	Own      []netfilter.Rule   // the attachment's, in chains that it shares with siblings
	Before   firewalld.Before   // addresses that were in zones before the attachment, and stay
	Others   Others             // nil: there are none

	How Manner
}

// Manner is how to look, and how far to go.
type Manner struct {
	// FilesOnly has nothing looked for in Host, which is gone.
	FilesOnly bool
	// Thorough has all files of the network and all rules looked at: the ADD or DEL
	// was cut short, so that more addresses may be held for the attachment.
	Thorough bool
	// Emptied decides whether an empty reservation is the attachment's, if the sweep is
	// thorough; nil: none is.
	Emptied func(ipamdir.Reservation) bool
	// Only bounds the addresses that may be released; nil: all that are reserved for
	// the attachment.
	Only func(netip.Addr) bool
	// Lost has the interface looked for in the namespaces of all processes, if it is
	// not in the container. It must not be set if the interface can be another
	// container's by now.
	Lost bool
	// GiveUp has a backup of tuning's deleted although it cannot be restored.
	GiveUp bool
}

// Others knows the other attachments of the host. It is asked only if something was
// found that may be another's by now.
type Others interface {
	InUse() ([]netip.Addr, error) // the addresses of other containers
	// InNetwork reports whether another attachment needs the host to forward a subnet's
	// packets.
	InNetwork(subnet netip.Prefix) (bool, error)
	InZones() ([]netip.Addr, error) // those that may be in a zone of firewalld
	HaveShaper(name, mac string) (bool, error)
	HaveDevice(*footprint.Device) (bool, error)
}

// Item is something that was left.
type Item interface {
	String() string                   // for a person, one or more lines
	Remove(ctx context.Context) error // nil if it is gone meanwhile
}

// Find lists the leftovers, in the order in which they are to be removed.
func Find(ctx context.Context, t Target) (items []Item, err error) {
	if t.Conns == nil {
		t.Conns = &links.Conns{}
		defer func() { err = errors.Join(err, t.Conns.Close()) }()
	}
	s := &search{Target: t}
	finders := []func(context.Context) ([]Item, error){s.zoned, s.rules, s.containerLink, s.hostEnds, s.shaper, s.tuned, s.addresses}
	switch {
	case t.How.FilesOnly:
		finders = []func(context.Context) ([]Item, error){s.zoned, s.tuned, s.addresses} // all namespaces have one firewalld
	case t.Host == nil: // off Linux
		return nil, nil
	}
	var errs []error
	for _, find := range finders {
		found, err := find(ctx)
		items = append(items, found...)
		errs = append(errs, err)
	}
	return items, errors.Join(errs...)
}

// search is one look at the target.
type search struct {
	Target
	missing bool // the device exists, and is not on the host
}

// inUse returns the addresses that other attachments have: those on record, and those
// of the target that host-local has reserved for another ID, which may be another
// program's.
func (t *Target) inUse(recorded func(Others) ([]netip.Addr, error)) (all []netip.Addr, err error) {
	if t.Others != nil {
		if all, err = recorded(t.Others); err != nil {
			return nil, err
		}
	}
	reserved, err := ipamdir.Taken(t.Reservations())
	return append(all, reserved...), err
}

// InUse returns those of the target's addresses, among others, that other attachments
// have by now.
func (t *Target) InUse() ([]netip.Addr, error) { return t.inUse(Others.InUse) }

// InZones is InUse for the addresses that may be in a zone of firewalld.
func (t *Target) InZones() ([]netip.Addr, error) { return t.inUse(Others.InZones) }

// Reservations describes the target's reservations.
func (t *Target) Reservations() ipamdir.Search {
	return ipamdir.Search{
		Dirs: t.IPAMDirs, ContainerID: t.ContainerID, IfName: t.IfName, Addresses: t.Addresses,
		Thorough: t.How.Thorough, Emptied: t.How.Emptied, Only: t.How.Only,
	}
}

// addresses finds the reservations.
func (s *search) addresses(context.Context) (items []Item, err error) {
	found, err := ipamdir.Find(s.Reservations())
	for _, r := range found {
		items = append(items, r)
	}
	return items, err
}

// Remove removes the items, goes on after an error, and returns all errors.
func Remove(ctx context.Context, items []Item) error {
	var errs []error
	for _, item := range items {
		if err := ctx.Err(); err != nil {
			return errors.Join(append(errs, err)...)
		}
		errs = append(errs, item.Remove(ctx))
	}
	return errors.Join(errs...)
}

// Limit is the longest time for one attachment. Legacy iptables waits for its lock
// without a limit, and another program may hold the lock.
const Limit = time.Minute

// All removes the leftovers, and looks again. It returns neither lines nor an error
// only after verifying that nothing remains.
func All(ctx context.Context, t Target, log *slog.Logger) (left []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, Limit)
	defer cancel()
	t.leaveSubnets(ctx)
	found, err := Find(ctx, t)
	if err != nil {
		return nil, err
	}
	return Clear(ctx, t, found, log)
}

// Clear removes the items that were found, and looks again. It describes the items that
// are still there, and returns no error if there are none. UDP flows are no leftovers:
// new ones may come at any time, and a kernel without conntrack has none, so a failure
// is only logged.
func Clear(ctx context.Context, t Target, found []Item, log *slog.Logger) (left []string, err error) {
	if len(found) > 0 {
		log.Info("removing leftovers of DEL", "network", t.Network, "left", Lines(found))
		if err = Remove(ctx, found); err == nil {
			t.Subnets = nil // rules that are still there are needed by others, who delete them
		}
		if still, ferr := Find(ctx, t); ferr != nil || len(still) > 0 {
			return Lines(still), errors.Join(err, ferr)
		}
	}
	if _, err := FlushFlows(t); err != nil {
		log.Warn("flush UDP flows", "error", err)
	}
	return nil, nil
}

// Lines describes the items, a line each or more.
func Lines(items []Item) (lines []string) {
	for _, item := range items {
		lines = append(lines, strings.Split(item.String(), "\n")...)
	}
	return lines
}
