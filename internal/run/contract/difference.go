// Package contract is what the runtime and the built-in plugins have in common: what a
// plugin is given for a call, and how it says that an attachment differs from its record:
// which parts are missing, or are not as the ADD made them.
//
// Each built-in plugin compares its own part, from the configuration and the result of the
// ADD. CHECK, the verdict of Health and Repair share that comparison: CHECK returns the first
// difference, Health all of them, and Repair makes again what is missing.
//
//	record ─► plugin.Request ─┐
//	look at the kernel ─► View ─► Comparer.Compare ─► []Difference ─► CHECK, Health, Repair
//
// A View may be the kernel itself, as in CHECK and Repair, or one dump of the host for all
// containers, as in Health. A comparison changes nothing.
package contract

import (
	"context"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

// Kind is the kind of object that differs.
type Kind string

const (
	Interface   Kind = "interface"
	Address     Kind = "address"
	Route       Kind = "route"
	Rule        Kind = "rule" // masquerading, forwarding, isolation, against spoofing
	Port        Kind = "port" // a forwarded port of the host
	Queue       Kind = "queue"
	Bridge      Kind = "bridge"
	BridgePort  Kind = "bridge port"
	Sysctl      Kind = "sysctl"
	Reservation Kind = "reservation" // of an address, by an IPAM plugin
	Zone        Kind = "zone"        // of firewalld
	Lease       Kind = "lease"       // of flanneld, for the subnet of an address
	FailedCheck Kind = "check"       // the CHECK of a plugin, which has failed
)

// Difference is a part of an attachment that is missing or different.
type Difference struct {
	Plugin string // the type of the plugin whose part it is, which the caller of Compare sets
	Kind   Kind
	Inside bool   // it is in the container's namespace; else it is on the host
	Object string // its name: "vethab12", "10.1.0.1/24 on cni0", "tcp 8080"
	Wanted string // its recorded value
	Found  string // its value now; empty if it is missing
	Err    error  // the error that CHECK returns for it; nil if CHECK passes over it

	// Fix adds the missing part, perhaps with others of the same object: the addresses of an
	// interface, the queues of a limit; never with rules or routes. It changes nothing else,
	// can be repeated, and is nil if Repair must not, or cannot, add the part; Why is then the reason. Fix uses
	// the request of the comparison, and the [Given] in ctx.
	Fix func(ctx context.Context) error
	Why string

	// Shared means that the part serves all attachments: a difference of the same
	// Kind, Object and Wanted is the same one, and one Fix is enough.
	Shared bool
	// Announce has the host and the container learn each other's hardware address
	// again, when the parts are there. Otherwise they would ask again a second after a
	// question that was lost meanwhile. With unanswered, only those are asked again
	// who have not answered. It is nil if no question can be lost. The differences of
	// one plugin's part have the same.
	Announce func(ctx context.Context, unanswered bool) error
}

// Comparer is a built-in plugin that can compare its part of an attachment. There is none
// off Linux.
type Comparer interface {
	// Compare returns the differences, in the order in which they have to be made
	// again. The request is one of CHECK. An error means that the comparison is
	// impossible: the configuration is invalid, or the kernel cannot be read.
	// The plugin to which it delegates, such as that of IPAM, is compared by
	// itself.
	Compare(ctx context.Context, r *plugin.Request, v *View) ([]Difference, error)
}

// Delegator is a built-in plugin that has another plugin do its work, with a configuration
// of its own. That plugin and its IPAM plugin are compared by themselves.
type Delegator interface {
	// Delegated returns the other plugin. The request is one of CHECK, or of an ADD to come.
	Delegated(r *plugin.Request) (*libcni.PluginConfig, error)
}

// Witness is a built-in plugin that notes what an executable of its type has found and
// made, for a later comparison: its result does not say that.
type Witness interface {
	// Witness is called before the ADD of an executable, with its configuration. Unless
	// the error is set, after is called when the ADD has ended, also if it has failed.
	Witness(ctx context.Context, host *netns.Handle, config []byte) (after func() error, err error)
}

// Excuser is a built-in plugin that knows when the CHECK of the reference plugin of its
// type fails although nothing is wrong.
type Excuser interface {
	// Excuse returns why the CHECK of an attachment fails, in which Compare has found no
	// difference. The request is one of CHECK.
	Excuse(r *plugin.Request, v *View) (Excuse, error)
}

// Excuse is why a CHECK fails although nothing is wrong. The zero Excuse is none.
type Excuse struct {
	Why string
	// Blind means that the CHECK says nothing about the attachment: it fails for healthy
	// ones too. Otherwise it is about a difference that does not matter.
	Blind bool
}

// Announced sets the Announce of those differences that are in the way of packets on the
// host, and that can be repaired.
func Announced(all []Difference, announce func(ctx context.Context, unanswered bool) error) {
	for i := range all {
		switch all[i].Kind {
		case Interface, Address, Route, Bridge, BridgePort:
			if !all[i].Inside && all[i].Fix != nil {
				all[i].Announce = announce
			}
		}
	}
}
