package audit

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni/netns"
)

// initialPIDs is the PID namespace that has all processes (PROC_PID_INIT_INO).
const initialPIDs = "pid:[4026531836]"

// findNamespaces returns the network namespaces, and adds those that nobody may need.
func (a *auditor) findNamespaces(host netns.ID) namespaces {
	n := namespaces{all: map[netns.ID]place{}, addresses: map[netip.Addr]string{}}
	// Elsewhere, as in a container, the host's processes are not there at all.
	if first, err := os.Readlink(filepath.Join(a.ProcDir, "1/ns/pid")); err != nil || first != initialPIDs {
		n.hidden = true
	}
	processes, err := filepath.Glob(filepath.Join(a.ProcDir, "[0-9]*/ns/net"))
	if err != nil {
		a.unread("namespace", a.ProcDir, err)
	}
	for _, path := range processes {
		switch h, err := netns.Open(path); {
		case errors.Is(err, fs.ErrPermission):
			n.hidden = true
		case err == nil: // else the process has ended
			if _, ok := n.all[h.ID()]; !ok {
				n.all[h.ID()] = place{path: path}
				a.addressesIn(h, host, path, n.addresses)
			}
			a.release(h, path)
		}
	}
	for path := range a.namespaces { // whoever is in them, and wherever they are
		if h, err := netns.Open(path); err == nil {
			n.all[h.ID()] = place{path: path}
			a.release(h, path)
		}
	}
	pins, err := netns.List(a.NetNSDir)
	if err != nil {
		a.unread("namespace", a.NetNSDir, err)
	}
	for _, p := range pins {
		a.named(p, host, &n)
	}
	for _, p := range a.strays {
		a.stray(p, &n)
	}
	return n
}

// release lets go of a namespace.
func (a *auditor) release(h *netns.Handle, path string) {
	if err := h.Close(); err != nil {
		a.unread("namespace", path, err)
	}
}

// addressesIn notes the addresses in a namespace.
func (a *auditor) addressesIn(h *netns.Handle, host netns.ID, path string, all map[netip.Addr]string) {
	if h.ID() == host {
		return
	}
	err := h.Do(func() error {
		addrs, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
		for _, addr := range addrs {
			if ip, ok := netip.AddrFromSlice(addr.IP); ok && !everywhere(ip.Unmap()) {
				all[ip.Unmap()] = path
			}
		}
		if errors.Is(err, netlink.ErrDumpInterrupted) {
			return nil // the namespace lives, and changes
		}
		return err
	})
	if err != nil {
		a.unread("namespace", path, err)
	}
}

// named judges a namespace with a name. A name is kept by somebody, so that it is in use.
func (a *auditor) named(p netns.Entry, host netns.ID, n *namespaces) {
	f := Finding{Whose: Another, Kind: "namespace", Object: p.Path}
	_, used := n.all[p.ID]
	switch {
	case p.ID == netns.ID{}:
		f.Whose, f.Detail, f.Mend = Nobody, "no namespace is mounted there, as after a reboot", "rm "+p.Path
		a.add(f)
		return
	case used || a.namespaces[p.Path]:
	case n.hidden:
		f.Whose, f.Detail = NotAsked, "no container on record has it; whether a process that cannot be seen is in it, root on the host can tell"
		a.add(f)
	default:
		f.Detail = "no container on record has it and no process is in it; who made it is not known"
		a.add(f)
	}
	if h, err := netns.Open(p.Path); err == nil && !used {
		n.all[h.ID()] = place{path: p.Path}
		a.addressesIn(h, host, p.Path, n.addresses)
		a.release(h, p.Path)
	}
}

// stray judges a namespace that the library keeps for a container on no record.
func (a *auditor) stray(p netns.Entry, n *namespaces) {
	f := Finding{Kind: "namespace", Object: p.Path}
	switch at, used := n.all[p.ID]; {
	case used:
		f.Whose, f.Detail = Another, "the library keeps it alive for a container that is on no record, and "+at.path+" leads there too"
	case n.hidden:
		f.Whose, f.Detail = NotAsked, "its container is on no record; whether a process that cannot be seen is in it, root on the host can tell"
	default:
		f.Whose, f.Detail = Nobody, "the library keeps it alive for a container that is on no record"
		f.Mend = "umount " + p.Path + " && rm " + p.Path
		n.all[p.ID] = place{p.Path, true}
	}
	a.add(f)
}
