package cni

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/embedcni/cni/internal/plainfile"
)

// ResolvConf returns MergedDNS as a resolv.conf(5), for the container's /etc. It is empty
// if no network has reported anything. A value that resolv.conf cannot hold, such as one
// with a newline, is ErrInvalidResult.
func (r *Result) ResolvConf() ([]byte, error) {
	data, err := renderResolvConf(r.MergedDNS())
	if err != nil {
		return nil, fmt.Errorf("resolv.conf: %w: %w", err, ErrInvalidResult)
	}
	return data, nil
}

// WriteResolvConf writes ResolvConf to a file, with mode 0644. If no network has reported
// a name server, it writes nothing and returns ErrNotFound: with an empty file the
// container would ask 127.0.0.1.
//
// The file is replaced in one step, unless it is the same already. A container in which
// the old one is mounted, and which runs, keeps that. No directory of path may be the
// container's to change: it could lead the write elsewhere.
func (r *Result) WriteResolvConf(path string) error {
	data, err := r.ResolvConf()
	if err != nil {
		return err
	}
	if len(r.MergedDNS().Nameservers) == 0 {
		return fmt.Errorf("resolv.conf: the networks have reported no name server: %w", ErrNotFound)
	}
	if err := plainfile.Replace(path, data, 0o644); err != nil {
		return fmt.Errorf("resolv.conf: %w", err)
	}
	return nil
}

// HostsEntry is a line of hosts(5).
type HostsEntry struct {
	Addr  netip.Addr
	Names []string // the canonical name, and aliases
}

// Hosts returns a hosts(5), for the container's /etc: localhost, the container's
// addresses with its names, Primary's first, and more entries in the given order. Without
// names it has no entry for the container. A name that is not one word is
// ErrInvalidArgument, and so is an entry without an address or a name.
func (r *Result) Hosts(names []string, more ...HostsEntry) ([]byte, error) {
	var entries []HostsEntry
	if len(names) > 0 {
		for _, addr := range r.containerAddrs() {
			entries = append(entries, HostsEntry{Addr: addr, Names: names})
		}
	}
	data, err := renderHosts(append(entries, more...))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, ErrInvalidArgument)
	}
	return data, nil
}

// WriteHosts writes Hosts to a file, as WriteResolvConf does.
func (r *Result) WriteHosts(path string, names []string, more ...HostsEntry) error {
	data, err := r.Hosts(names, more...)
	if err != nil {
		return err
	}
	if err := plainfile.Replace(path, data, 0o644); err != nil {
		return fmt.Errorf("hosts: %w", err)
	}
	return nil
}

// containerAddrs returns the addresses by which others reach the container, each once:
// those of interfaces in a sandbox, or all if none is said to be in one.
func (r *Result) containerAddrs() (addrs []netip.Addr) {
	ranked := r.ranked()
	inside := func(i *Interface) bool { return i.Sandbox != "" }
	reachable := func(ip netip.Addr) bool { return !ip.IsLoopback() && !ip.IsLinkLocalUnicast() }
	someInside := slices.ContainsFunc(ranked, func(i *Interface) bool { return inside(i) && i.address(reachable).IsValid() })
	for _, i := range ranked {
		if someInside && !inside(i) {
			continue
		}
		for _, a := range i.Addresses {
			if ip := a.IP(); ip.IsValid() && reachable(ip) && !slices.Contains(addrs, ip) {
				addrs = append(addrs, ip)
			}
		}
	}
	return addrs
}
