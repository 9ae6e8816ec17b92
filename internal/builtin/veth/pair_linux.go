package veth

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/builtin/ipam"
	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/plugin"
)

// Ends are the ends of an ADD's veth pair, with sockets in their namespaces.
type Ends struct {
	links.Pair  // made if the host's end has an index
	Request     *plugin.Request
	OnHost      *links.Conn
	InContainer *links.Conn // nil before MakeContainer
}

// Add runs an ADD that connects a container by a veth pair; see [ipam.Attach].
func Add(ctx context.Context, r *plugin.Request, typ string, maker func(*Ends) ipam.Maker) (result *types100.Result, err error) {
	host, err := contract.From(ctx).Conns.Borrow(r.Host)
	if err != nil {
		return nil, err
	}
	e := &Ends{Request: r, OnHost: host}
	defer func() { err = joined.Errors(err, e.close()) }()
	return ipam.Attach(ctx, r, typ, maker(e))
}

// MakeContainer opens the socket in the container, changes the settings there that the
// addresses of a result need, and makes the container's end; see [ipam.Interface.Make].
func (e *Ends) MakeContainer(ctx context.Context, i ipam.Interface, result *types100.Result, more ...links.Sysctl) (added []netip.Prefix, err error) {
	if e.InContainer, err = contract.From(ctx).Conns.Borrow(e.Request.Container); err != nil {
		return nil, err
	}
	if err := links.SetSysctls(e.InContainer, e.Request.Container, append(more, ipam.Sysctls(e.Request.IfName, result)...)...); err != nil {
		return nil, err
	}
	return i.Make(e.Request.Container, e.InContainer, e.Container, result)
}

func (e *Ends) close() error {
	err := e.OnHost.Close()
	if e.InContainer != nil {
		err = joined.Errors(e.InContainer.Close(), err)
	}
	return err
}

// MissingForwarding returns the settings that make the host forward for the families of
// the addresses, unless it does.
func MissingForwarding(host *links.Conn, addrs []netip.Prefix) (missing []links.Sysctl) {
	for _, v6 := range []bool{false, true} {
		if slices.ContainsFunc(addrs, func(p netip.Prefix) bool { return p.Addr().Is6() == v6 }) && !links.Forwarding(host, v6) {
			missing = append(missing, links.Forward(v6))
		}
	}
	return missing
}

// NoRA makes an interface of the host ignore router advertisements, because its routes
// come from here.
func NoRA(name string) links.Sysctl {
	return links.Sysctl{Path: "net/ipv6/conf/" + name + "/accept_ra", Value: "0", Optional: true}
}

// Undo deletes the pair, if it was made.
func (e *Ends) Undo(context.Context) error {
	if e.Host.Index == 0 {
		return nil
	}
	return e.OnHost.Delete(e.Host.Index)
}

// Interfaces returns the pair in the form of a result.
func (e *Ends) Interfaces() (host, container *types100.Interface) {
	return &types100.Interface{Name: e.Host.Name, Mac: e.Host.MAC.String()},
		&types100.Interface{Name: e.Container.Name, Mac: e.Container.MAC.String(), Sandbox: e.Request.NetNS}
}

// runTime limits the time until the kernel notices that both ends are up. Only
// old kernels under load need any.
const runTime = 3 * time.Second

// AwaitRunning waits until packets pass the host's end. Since Linux 6.8 they do
// when the first answer arrives.
func (e *Ends) AwaitRunning(ctx context.Context) error {
	if e.Host.Running() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, runTime)
	defer cancel()
	return awaitRunning(ctx, e.OnHost, e.Host.Index)
}

// awaitRunning waits until an interface in the namespace of conn can send.
func awaitRunning(ctx context.Context, conn *links.Conn, index int) error {
	for {
		link, err := conn.LinkByIndex(index)
		if err != nil || link.Running() {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("interface %q is up, but has no carrier (operational state %d): %w", link.Name, link.OperState, context.Cause(ctx))
		case <-time.After(time.Millisecond):
		}
	}
}

// Again says why a plugin's interface is not made again.
const Again = "a new interface needs Remove and Setup"

// Container describes the container's end of a pair, for comparisons.
//
// The MTU is not compared. A later plugin may have changed it without a word in
// the result: the reference plugin tuning reports it in no version of the
// specification.
func Container(up bool) ipam.Interface {
	return ipam.Interface{Up: up, Gone: Again, Fits: func(own links.Link, said *types100.Interface) ([]contract.Difference, error) {
		if own.Kind != "veth" {
			return []contract.Difference{notVeth(own)}, nil
		}
		return ipam.SameMAC(own, said), nil
	}}
}

func notVeth(link links.Link) contract.Difference {
	return contract.Difference{Wanted: "veth", Found: link.Kind, Err: fmt.Errorf("it is not a veth interface, but %q", link.Kind)}
}

// Host is the host's end of a pair, as a comparison found it. It is Ours if it has the name
// or the hardware address of the ADD.
type Host ipam.Found

// CompareHost compares the host's end of the pair, which must be up and the peer
// of the container's end. The kernel knows the peer: an administrator or udev
// may have changed its name and hardware address, and packets pass all the same.
//
// Without the container's end there is none, and no difference. setUp makes the
// end ready and sets it up.
func CompareHost(r *plugin.Request, v *contract.View, container ipam.Found, setUp contract.Make) (host Host, all []contract.Difference, err error) {
	said := HostInterface(r.PrevResult, r.IfName)
	if said.Name == "" {
		return host, nil, fmt.Errorf("prevResult has no interface of the host before %q", r.IfName)
	}
	if !container.Exists || container.Kind != "veth" {
		return host, nil, nil
	}
	d := contract.Difference{Kind: contract.Interface, Object: said.Name, Wanted: said.Mac, Why: Again}
	host.Link, err = v.Host.LinkByIndex(container.Peer.Index)
	if links.NotFound(err) {
		d.Err = fmt.Errorf("interface %q on the host: %w", said.Name, err)
		return host, []contract.Difference{d}, nil
	}
	if err != nil {
		return host, nil, fmt.Errorf("interface %q on the host: %w", said.Name, err)
	}
	// The number of an interface in a third namespace may be that of any
	// interface here.
	m := notVeth(host.Link)
	if host.Kind == "veth" {
		host.Exists = host.Peer.Index == container.Index
		m = contract.Difference{Wanted: "the peer of " + r.IfName, Found: host.Name, Err: fmt.Errorf("it is not the other end of the container's %q", container.Name)}
	}
	host.Ours = host.Exists && (host.Name == said.Name || contract.SameMAC(said.Mac, host.MAC) && said.Mac != "")
	if host.Exists && host.Up() {
		return host, nil, nil
	}
	d.Object = host.Name
	if host.Exists {
		m, d.Why = contract.Difference{Wanted: "up", Found: "down", Err: errors.New("it is down")}, ""
		d = host.Place(r).Lacks(d, setUp)
	}
	d.Wanted, d.Found, d.Err = m.Wanted, m.Found, fmt.Errorf("interface %q on the host: %w", host.Name, m.Err)
	return host, []contract.Difference{d}, nil
}

// Place returns the host's end as a place of objects.
func (h Host) Place(r *plugin.Request) *contract.Place {
	p := &contract.Place{
		NS: r.Host, Name: fmt.Sprintf("interface %q on the host", h.Name),
		Find: func(conn *links.Conn) (links.Link, error) { return conn.LinkByIndex(h.Index) },
		Same: func(now links.Link) bool {
			return now.Kind == "veth" && now.Name == h.Name && now.Peer.Index == h.Peer.Index
		},
	}
	if !h.Ours {
		p.Whose = "it has neither the recorded name nor the recorded hardware address, so it may be another pair"
	}
	return p
}

// mostWait limits how long [Resolve] waits for the container's end. The kernel repeats a
// question after a second.
const mostWait = 300 * time.Millisecond

// Resolve has the host and the container find each other, through an interface of the
// host and that of the container. With unanswered it asks only for the addresses that are
// not known, when the container can answer.
func Resolve(ctx context.Context, r *plugin.Request, conn *links.Conn, host, container int, unanswered bool) error {
	addrs := contract.AddressesOf(contract.OwnResult(r))
	if unanswered {
		left, err := links.Unanswered(conn, host, addrs)
		if err != nil || len(left) == 0 {
			return err
		}
		brief, cancel := context.WithTimeout(ctx, mostWait)
		defer cancel()
		err = contract.On(brief, r.Container, func(inside *links.Conn) error {
			link, err := inside.LinkByIndex(container)
			if err != nil || !link.Up() {
				return err
			}
			return awaitRunning(brief, inside, container)
		})
		if err != nil && brief.Err() == nil {
			return err
		}
	}
	return links.Resolve(conn, host, addrs, unanswered)
}

// CompareForwarding reports whether the host forwards what arrives at an
// interface, for the addresses' families. CHECK passes over it, and nobody
// changes it: the setting is the host's, and affects all of its containers at
// once.
//
// For IPv6 the kernel looks at the setting "all" alone, which sets those of all
// interfaces when it changes: it is off if those of lo and of the interface are.
func CompareForwarding(v *contract.View, link links.Link, addrs []netip.Prefix) (all []contract.Difference, err error) {
	off := func(l links.Link, family string) bool {
		return l.Has(links.Sysctl{Path: "net/" + family + "/conf/" + l.Name + "/forwarding", Value: "0"})
	}
	add := func(path string) {
		all = append(all, contract.Difference{Kind: contract.Sysctl, Object: path, Wanted: "1", Found: "0", Why: "the setting is the host's"})
	}
	if slices.ContainsFunc(addrs, func(p netip.Prefix) bool { return p.Addr().Is4() }) && off(link, "ipv4") {
		add("net/ipv4/conf/" + link.Name + "/forwarding")
	}
	if slices.ContainsFunc(addrs, func(p netip.Prefix) bool { return p.Addr().Is6() }) && off(link, "ipv6") {
		lo, err := v.Host.Link("lo")
		if err != nil {
			return nil, err
		}
		if off(lo, "ipv6") {
			add("net/ipv6/conf/all/forwarding")
		}
	}
	return all, nil
}
