// Package etcfiles renders and writes the files of a container's /etc that depend on its
// networks: hosts(5) and resolv.conf(5).
package etcfiles

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/kernel/plainfile"
)

// ResolvConf returns a result's MergedDNS as a resolv.conf(5). It is empty if no network
// has reported anything. A value that resolv.conf cannot hold, such as one with a newline,
// is cni.ErrInvalidResult.
func ResolvConf(r *cni.Result) ([]byte, error) {
	data, err := renderResolvConf(r.MergedDNS())
	if err != nil {
		return nil, fmt.Errorf("resolv.conf: %w: %w", err, cni.ErrInvalidResult)
	}
	return data, nil
}

// WriteResolvConf writes [ResolvConf] to a file, with mode 0644. If no network has reported
// a name server, it writes nothing and returns cni.ErrNotFound: with an empty file the
// container would ask 127.0.0.1.
//
// The file is replaced in one step, unless it is the same already. A container in which
// the old one is mounted, and which runs, keeps that. No directory of path may be the
// container's to change: it could lead the write elsewhere.
func WriteResolvConf(path string, r *cni.Result) error {
	data, err := ResolvConf(r)
	if err != nil {
		return err
	}
	if len(r.MergedDNS().Nameservers) == 0 {
		return fmt.Errorf("resolv.conf: the networks have reported no name server: %w", cni.ErrNotFound)
	}
	if err := plainfile.Replace(path, data, 0o644); err != nil {
		return fmt.Errorf("resolv.conf: %w", err)
	}
	return nil
}

// Entry is a line of hosts(5).
type Entry struct {
	Addr  netip.Addr
	Names []string // the canonical name, and aliases
}

// Hosts returns a hosts(5): localhost, the container's addresses with its names, those of
// its interfaces in the order of their names, and more entries in the given order. Without
// names it has no entry for the container. A name that is not one word is
// cni.ErrInvalidArgument, and so is an entry without an address or a name.
func Hosts(r *cni.Result, names []string, more ...Entry) ([]byte, error) {
	var entries []Entry
	if len(names) > 0 {
		for _, addr := range addresses(r) {
			entries = append(entries, Entry{addr, names})
		}
	}
	data, err := renderHosts(append(entries, more...))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, cni.ErrInvalidArgument)
	}
	return data, nil
}

// WriteHosts writes Hosts to a file, as [WriteResolvConf] does.
func WriteHosts(path string, r *cni.Result, names []string, more ...Entry) error {
	data, err := Hosts(r, names, more...)
	if err != nil {
		return err
	}
	if err := plainfile.Replace(path, data, 0o644); err != nil {
		return fmt.Errorf("hosts: %w", err)
	}
	return nil
}

// addresses returns the addresses by which others reach the container, each once: those
// of interfaces in a sandbox, or all if none is said to be in one.
func addresses(r *cni.Result) (addrs []netip.Addr) {
	var outside []netip.Addr
	for _, i := range interfaces(r) {
		for _, a := range i.Addresses {
			to := &addrs
			if i.Sandbox == "" {
				to = &outside
			}
			ip := a.IP()
			if ip.IsValid() && !ip.IsLoopback() && !ip.IsLinkLocalUnicast() && !slices.Contains(*to, ip) {
				*to = append(*to, ip)
			}
		}
	}
	if len(addrs) == 0 {
		return outside
	}
	return addrs
}

// interfaces returns the interfaces of all networks in the order of their names. A Result
// that go-cni wrote as JSON has no Networks, and has them in a map.
func interfaces(r *cni.Result) (all []*cni.Interface) {
	for _, n := range r.Networks {
		all = append(all, n.Interfaces...)
	}
	if r.Networks == nil {
		for name, c := range r.Interfaces {
			i := &cni.Interface{Name: name, Sandbox: c.Sandbox}
			for _, ip := range c.IPConfigs {
				if addr, ok := netip.AddrFromSlice(ip.IP); ok {
					addr = addr.Unmap()
					i.Addresses = append(i.Addresses, cni.Address{Prefix: netip.PrefixFrom(addr, addr.BitLen())})
				}
			}
			all = append(all, i)
		}
	}
	slices.SortStableFunc(all, func(a, b *cni.Interface) int { return cmp.Compare(a.Name, b.Name) })
	return all
}
