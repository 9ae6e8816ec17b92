package guard

import (
	"net/netip"
	"strings"
)

// Class is a kind of things to guard, or several.
type Class uint8

const (
	Rules  Class = 1 << iota // of the packet filters
	Links                    // interfaces on the host, with their bridge and their addresses
	Routes                   // on the host

	All = Rules | Links | Routes
)

// String lists the classes.
func (c Class) String() string {
	var names []string
	for i, name := range []string{"rules", "links", "routes"} {
		if c&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// Event is one announcement. One field is set.
type Event struct {
	Lost    Class // announcements of these classes were dropped
	Link    *Link
	Port    *Port
	Address *Address
	Queue   *Queue
	Route   *Route
	Rules   *Changed
	Holds   bool // something was held, or is no longer
}

// Changed is a change of the packet filter by others that took something away.
type Changed struct {
	By string // the process that made it; empty if not known
}

// Link is the state of an interface.
type Link struct {
	Index  int
	Name   string
	Up     bool
	Master int // the index of its bridge; 0 for none
	Gone   bool
	// DefaultVLAN is the VLAN that a bridge gives to new ports; 0 for none.
	DefaultVLAN uint16
}

// Address is an address that an interface has lost.
type Address struct{ Interface int }

// Queue is a queue that an interface has lost, or a filter of one.
type Queue struct{ Interface int }

// Route is a route that was deleted.
type Route struct {
	Interface int
	Dst       netip.Prefix
}

// Sign names a thing whose loss was announced, as the Index knows it.
type Sign struct {
	Kind Kind
	Name string
}

// Kind is the kind of a Sign.
type Kind uint8

const (
	ofLink Kind = iota
	ofDestination
)

// class returns the class that a sign belongs to.
func (k Kind) class() Class {
	if k == ofDestination {
		return Routes
	}
	return Links
}

// OfLink is the sign of an interface on the host, a bridge too.
func OfLink(name string) Sign { return Sign{ofLink, name} }

// OfAddress is the sign of the host's route to an address of a container.
func OfAddress(a netip.Addr) Sign { return Sign{ofDestination, a.Unmap().WithZone("").String()} }
