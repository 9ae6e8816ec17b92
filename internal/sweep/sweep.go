// Package sweep finds and removes what one attachment has left outside the
// firewall: the host's end of its veth pair, its interface in a namespace that
// lives on, host-local's address files, the device that bandwidth shapes with,
// and connections that conntrack still sends to its addresses.
//
// Everything is found by what the attachment's record says and by names that
// the reference plugins compute, never by pattern: what belongs to a neighbour
// is not so much as looked at twice.
package sweep

import (
	"context"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"net/netip"
	"strings"

	"github.com/embedcni/cni/netns"
)

// Target is the attachment.
type Target struct {
	Network, ContainerID, IfName string

	Host      *netns.Handle // where its plugins ran
	Container *netns.Handle // nil if the namespace is gone

	Links     []Link       // what its result says is on the host
	IPAMDirs  []string     // host-local's directories of the network
	Shaped    bool         // bandwidth is among its plugins
	Egress    bool         // bandwidth limits what the container sends, or may
	OwnsIf    bool         // its interface was made for it, so that it may be deleted
	Addresses []netip.Addr // of the container, as far as they are known
	FilesOnly bool         // where its plugins ran is gone: only files are left
	Thorough  bool         // its ADD or DEL was cut short: more addresses may be held for it

	// OthersShaper reports whether another attachment has made a device of
	// bandwidth's, by name and hardware address, or may have. It is asked only
	// if there is one that cannot be told otherwise; nil: none has.
	OthersShaper func(name, mac string) (bool, error)

	// Device is the attachment's interface, nil if that is not known. Lost has
	// it looked for in the namespaces of all processes, where it is not in the
	// container: only if it cannot be another container's by now.
	Device *Device
	Lost   bool
	// LentAgain reports whether another attachment has the device by now. It is
	// asked only if the device is missing; nil: none has.
	LentAgain func() (bool, error)

	// Backups are files in which the plugin tuning keeps what the interface had
	// before. HostName is what the host calls the interface that host-device has
	// moved, by the configuration; empty if there is none, or none that is named.
	Backups  []string
	Dies     bool // the interface goes with the attachment, so there is nothing to put back
	HostName string
	GiveUp   bool // delete a backup that cannot be put back too

	missing bool // the device exists, and is not on the host
	// Emptied decides whether an empty reservation is the attachment's, where the
	// sweep is thorough; nil if none is.
	Emptied func(Reservation) bool
	// Only bounds the addresses that may be released; nil if nothing does but that
	// they are reserved for the attachment.
	Only func(netip.Addr) bool

	sockets *sockets // of one Find
}

// Link is an interface as a result reports it.
type Link struct{ Name, MAC string }

// Item is something that was left.
type Item interface {
	String() string // what it is, in one line, for a person
	Remove() error  // nil if it is gone meanwhile
}

// Find lists what is there, in the order in which it is to be removed.
func Find(ctx context.Context, t Target) ([]Item, error) {
	var items []Item
	var errs []error
	finders := []func(context.Context, Target) ([]Item, error){tuned, held}
	if !t.FilesOnly {
		finders = append([]func(context.Context, Target) ([]Item, error){containerLink, hostLinks, shaper}, finders...)
	}
	t.sockets = &sockets{}
	for _, find := range finders {
		found, err := find(ctx, t)
		items = append(items, found...)
		errs = append(errs, err)
	}
	errs = append(errs, t.sockets.close())
	return items, errors.Join(errs...)
}

func held(_ context.Context, t Target) ([]Item, error) { return addresses(t) }

// Remove removes the items, goes on after an error, and returns all.
func Remove(ctx context.Context, items []Item) error {
	var errs []error
	for _, item := range items {
		if err := ctx.Err(); err != nil {
			return errors.Join(append(errs, err)...)
		}
		errs = append(errs, item.Remove())
	}
	return errors.Join(errs...)
}

// ShaperName is the bandwidth plugin's ifb device for a container on a network,
// computed as the bandwidth plugin does: "bwp" and as much of a
// SHA-512 as an interface name has room for. A test holds it against the plugin.
//
// It is not the attachment's alone: other interfaces of the container on the
// network have the same, and so has container t1 on network "ne" as 1 on "net".
func ShaperName(network, id string) string { return shaperName(network + id) }

// OwnShaperName is the device's name where the other one is taken. No other
// attachment has it.
func OwnShaperName(network, id, ifName string) string {
	return shaperName(strings.Join([]string{network, id, ifName}, "/")) // none has a slash in it
}

func shaperName(of string) string {
	const longest = 15
	sum := sha512.Sum512([]byte(of))
	return ("bwp" + hex.EncodeToString(sum[:]))[:longest]
}
