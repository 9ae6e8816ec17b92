package leftovers

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/embedcni/cni/internal/kernel/firewalld"
	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/kernel/netfilter"
	"github.com/embedcni/cni/netns"
)

// Target is an attachment, and where and how to look for its leftovers. Whoever makes it
// owns the namespaces and the sockets, and closes them after the last use.
type Target struct {
	Footprint Footprint

	Host      *netns.Handle  // where its plugins ran; nil if FilesOnly
	Container *netns.Handle  // nil if the namespace is gone
	Firewalld *firewalld.Bus // on which firewalld is reached

	Filters netfilter.Options // of the packet filters that are searched
	Conns   *links.Conns      // open sockets; nil: each Find opens its own

	Siblings netfilter.Siblings // attachments of the container that stay
	Own      []netfilter.Rule   // the attachment's, in chains that it shares with siblings
	Before   firewalld.Before   // addresses that were in zones before the attachment, and stay
	Others   *Others            // asked only if something was found that may be another's by now

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
	Emptied func(Reservation) bool
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

// Item is something that was left.
type Item struct {
	Text   string                      // for a person, one or more lines
	Remove func(context.Context) error // returns nil if it is gone meanwhile
}

// finder finds leftovers of one kind.
type finder func(context.Context) ([]Item, error)

// Find lists the leftovers, in the order in which they are to be removed.
func Find(ctx context.Context, t Target) (items []Item, err error) {
	if t.Conns == nil {
		t.Conns = &links.Conns{}
		defer func() { err = joined.Errors(err, t.Conns.Close()) }()
	}
	finders := slices.Concat([]finder{t.zoned, t.rules}, t.inKernel(), []finder{t.tuned, t.addresses, t.kept})
	switch {
	case t.How.FilesOnly:
		finders = []finder{t.zoned, t.tuned, t.addresses, t.kept} // all namespaces have one firewalld
	case t.Host == nil: // off Linux
		return nil, nil
	}
	var errs []error
	for _, find := range finders {
		found, err := find(ctx)
		items = append(items, found...)
		errs = append(errs, err)
	}
	return items, joined.Errors(errs...)
}

// inUse returns the addresses that other attachments have: those on record, and those
// of the target that host-local has reserved for another ID, which may be another
// program's.
func (t *Target) inUse(recorded func() ([]netip.Addr, error)) ([]netip.Addr, error) {
	all, err := recorded()
	if err != nil {
		return nil, err
	}
	reserved, err := t.Footprint.taken()
	return append(all, reserved...), err
}

// InUse returns those of the target's addresses, among others, that other attachments
// have by now.
func (t *Target) InUse() ([]netip.Addr, error) { return t.inUse(t.Others.InUse) }

// InZones is InUse for the addresses that may be in a zone of firewalld.
func (t *Target) InZones() ([]netip.Addr, error) { return t.inUse(t.Others.InZones) }

// addresses finds the reservations.
func (t *Target) addresses(context.Context) (items []Item, err error) {
	found, err := t.reserved()
	for _, r := range found {
		items = append(items, Item{r.String(), r.Remove})
	}
	return items, err
}

// remove removes the items, goes on after an error, and returns all errors.
func remove(ctx context.Context, items []Item) error {
	var errs []error
	for _, item := range items {
		if err := ctx.Err(); err != nil {
			return joined.Errors(append(errs, err)...)
		}
		errs = append(errs, item.Remove(ctx))
	}
	return joined.Errors(errs...)
}

// Limit is the longest time for one attachment. Legacy iptables waits for its lock
// without a limit, and another program may hold the lock.
const Limit = time.Minute

// Sweep removes the leftovers, and looks again. It returns neither lines nor an error
// only after verifying that nothing remains.
func Sweep(ctx context.Context, t Target, log *slog.Logger) (left []string, err error) {
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
		log.Info("removing leftovers of DEL", "network", t.Footprint.Network, "left", Lines(found))
		if err = remove(ctx, found); err == nil {
			t.Footprint.Subnets = nil // rules that are still there are needed by others, who delete them
		}
		if still, ferr := Find(ctx, t); ferr != nil || len(still) > 0 {
			return Lines(still), joined.Errors(err, ferr)
		}
	}
	if _, err := t.flushFlows(); err != nil {
		log.Warn("flush UDP flows", "error", err)
	}
	return nil, nil
}

// Lines describes the items, a line each or more.
func Lines(items []Item) (lines []string) {
	for _, item := range items {
		lines = append(lines, strings.Split(item.Text, "\n")...)
	}
	return lines
}
