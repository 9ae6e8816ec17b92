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
	Object  *Object
	By      string // the process whose transaction the objects before belong to
	Holds   bool   // something was held, or is no longer
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

// Object is an object of nf_tables that was deleted, or a rule that was added.
type Object struct {
	Added      bool
	Family     uint8 // NFPROTO
	Table      string
	Chain      string   // the chain, or that of the rule
	Set        string   // the set, or that of the elements
	Rule       bool     // it is a rule
	Comments   []string // of the rule, or of the elements
	Jump       string   // the chain that the rule leads to
	Addresses  []netip.Addr
	HasElement bool // elements of Set were deleted, not the set
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
	ofChain
	ofComment
	ofAddress // a rule about it
)

// class returns the class that a sign belongs to.
func (k Kind) class() Class {
	switch k {
	case ofLink:
		return Links
	case ofDestination:
		return Routes
	}
	return Rules
}

// OfLink is the sign of an interface on the host, a bridge too.
func OfLink(name string) Sign { return Sign{ofLink, name} }

// OfAddress are the signs of an address of a container: the host's route to it, and
// rules that name nothing else.
func OfAddress(a netip.Addr) []Sign {
	name := a.Unmap().WithZone("").String()
	return []Sign{{ofDestination, name}, {ofAddress, name}}
}

// OfChain is the sign of a chain of a container's own.
func OfChain(name string) Sign { return Sign{ofChain, name} }

// OfComment is the sign of a comment of a container's rules and elements.
func OfComment(comment string) Sign { return Sign{ofComment, comment} }

// The families of linux/netfilter.h.
const (
	familyInet   = 1
	familyIPv4   = 2
	familyBridge = 7
	familyIPv6   = 10
)

// kindOfTable says how the objects of a table are told apart.
type kindOfTable uint8

const (
	othersTable kindOfTable = iota
	ownTable                // of this module, or of the reference plugins with nftables
	sharedTable             // of iptables, or of bridge's macspoofchk: others have rules in it
)

func (o *Object) table() kindOfTable {
	switch {
	case o.Family == familyInet && (o.Table == "embedcni" || o.Table == "cni_plugins_masquerade"),
		(o.Family == familyIPv4 || o.Family == familyIPv6) && o.Table == "cni_hostport":
		return ownTable
	case (o.Family == familyIPv4 || o.Family == familyIPv6) && (o.Table == "nat" || o.Table == "filter" || o.Table == "mangle"),
		o.Family == familyBridge && o.Table == "nat":
		return sharedTable
	}
	return othersTable
}

// place identifies a chain or a set that containers share.
type place struct {
	family       uint8
	table, chain string
}

// read returns the signs of a deleted object. Shared is set if it served all
// containers, whichever of the signs are known.
func (o *Object) read() (signs []Sign, shared bool) {
	kind := o.table()
	if kind == othersTable {
		return nil, false
	}
	if o.Rule || o.HasElement {
		return o.readContent(kind)
	}
	switch {
	case o.Chain != "" && IsContainers(o.Chain):
		return []Sign{OfChain(o.Chain)}, false
	case kind == ownTable:
		return nil, true
	}
	// A table of iptables, or a chain of the plugins or of a hook in it.
	return nil, o.Chain == "" || isPlugins(o.Chain) || isHook(o.Chain)
}

// readContent returns the signs of a deleted rule, or of elements.
func (o *Object) readContent(kind kindOfTable) (signs []Sign, shared bool) {
	for _, c := range o.Comments {
		signs = append(signs, OfComment(c))
	}
	for _, chain := range []string{o.Chain, o.Jump} {
		if IsContainers(chain) {
			signs = append(signs, OfChain(chain))
		}
	}
	if kind == sharedTable && isPlugins(o.Chain) || kind == ownTable {
		for _, a := range o.Addresses {
			signs = append(signs, OfAddress(a)[1])
		}
	}
	switch {
	case kind == ownTable && o.Rule && o.Table == "embedcni":
		shared = true // containers have elements in it, and no rules
	case kind == ownTable:
		shared = len(o.Comments) == 0
	case len(signs) == 0:
		shared = isPlugins(o.Chain) || isPlugins(o.Jump)
	}
	return signs, shared
}

// IsContainers reports whether a chain is of the form that the plugins give to one
// container's: CNI-, DN- or SN- perhaps, and a hash, or that of macspoofchk.
func IsContainers(chain string) bool {
	if strings.HasPrefix(chain, "cni-br-iface-") {
		return true
	}
	rest, ok := strings.CutPrefix(chain, "CNI-")
	if !ok {
		return false
	}
	rest = strings.TrimPrefix(strings.TrimPrefix(rest, "DN-"), "SN-")
	return len(rest) >= 20 && strings.Trim(rest, "0123456789abcdef") == ""
}

// isPlugins reports whether a chain is one that the plugins make for all containers.
func isPlugins(chain string) bool { return strings.HasPrefix(chain, "CNI-") && !IsContainers(chain) }

func isHook(chain string) bool {
	switch chain {
	case "PREROUTING", "POSTROUTING", "INPUT", "OUTPUT", "FORWARD":
		return true
	}
	return false
}
