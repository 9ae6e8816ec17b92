package audit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni/cnitest"
	"github.com/embedcni/cni/netns"
)

// kernel judges what the host's network namespace has.
func (a *auditor) kernel(ctx context.Context, path string) error {
	host, err := netns.Current()
	if path != "" {
		host, err = netns.Open(path)
	}
	if err != nil {
		return fmt.Errorf("host's network namespace: %w", err)
	}
	defer host.Close()
	all := a.findNamespaces()
	return host.Do(func() error {
		if err := a.filters(ctx); err != nil {
			return err
		}
		return a.links(all)
	})
}

// filters judges the rules. The directories are read elsewhere.
func (a *auditor) filters(ctx context.Context) error {
	lines, err := cnitest.Audit(ctx, cnitest.Options{StateDirs: []string{}, NetNSDirs: []string{}})
	if err != nil {
		return err
	}
	for _, line := range lines {
		what, rest, _ := strings.Cut(line, " ")
		switch {
		case what == "missing":
			a.add(Finding{Whose: NotAsked, Kind: "tool", Object: rest, Detail: rest + " is not installed, so that its rules cannot be read", Mend: "install it"})
		case what == "nft" || strings.Contains(what, "tables"):
			a.rule(line)
		}
	}
	return nil
}

// place is where a namespace is found.
type place struct {
	path  string // of a pin, or /proc/PID/ns/net
	stray bool   // only the library keeps it, for a container on no record
}

// namespaces are those that have a path or a process.
type namespaces struct {
	all    map[netns.ID]place
	hidden bool // those of some processes cannot be read
}

// findNamespaces returns the network namespaces, and adds those that nobody may need.
func (a *auditor) findNamespaces() namespaces {
	n := namespaces{all: map[netns.ID]place{}}
	for _, path := range a.strays {
		if h, err := netns.Open(path); err == nil {
			n.all[h.ID()] = place{path, true}
			h.Close()
		} // else it has gone meanwhile
	}
	processes, err := filepath.Glob("/proc/[0-9]*/ns/net")
	if err != nil {
		a.unread("namespace", "/proc", err)
	}
	for _, path := range processes {
		h, err := netns.Open(path)
		switch {
		case errors.Is(err, fs.ErrPermission):
			n.hidden = true
		case err == nil:
			n.all[h.ID()] = place{path: path}
			h.Close()
		} // else the process has ended
	}
	pins, err := netns.List(a.NetNSDir)
	if err != nil {
		a.unread("namespace", a.NetNSDir, err)
	}
	for _, p := range pins {
		a.named(p, n)
	}
	return n
}

// named judges a namespace with a name.
func (a *auditor) named(p netns.Entry, n namespaces) {
	at, used := n.all[p.ID]
	f := Finding{Whose: Another, Kind: "namespace", Object: p.Path}
	switch {
	case p.ID == netns.ID{}:
		f.Whose, f.Detail, f.Mend = Nobody, "no namespace is mounted there, as after a reboot", "rm "+p.Path
		a.add(f)
		return
	case used && !at.stray, a.namespaces[p.Path]:
	case n.hidden:
		f.Whose, f.Detail = NotAsked, "no container on record has it; whether a process of another user is in it, root can see"
		a.add(f)
	default:
		f.Detail = "no container on record has it and no process is in it; who made it is not known"
		a.add(f)
	}
	if !used || at.stray {
		n.all[p.ID] = place{path: p.Path}
	}
}

// made are the names that the reference plugins give to the host's ends of pairs, and to the
// devices of bandwidth.
var made = regexp.MustCompile(`^(veth[0-9a-f]{8}|bwp[0-9a-f]{11,12})$`)

// links judges the interfaces.
func (a *auditor) links(n namespaces) error {
	links, err := netlink.LinkList()
	for range 10 { // an interrupted dump may lack interfaces
		if errors.Is(err, netlink.ErrDumpInterrupted) {
			links, err = netlink.LinkList()
		}
	}
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	names, ports := map[int]string{}, map[int]int{}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
		ports[l.Attrs().MasterIndex]++
	}
	reached := reach(n.all)
	for _, l := range links {
		at := l.Attrs()
		master := names[at.MasterIndex]
		switch {
		case a.interfaces[at.Name]:
		case l.Type() == "bridge" && at.Alias == "embedcni" && !a.bridges[at.Name] && ports[at.Index] == 0:
			a.add(Finding{Whose: Nobody, Kind: "bridge", Object: at.Name, Mend: "ip link delete " + at.Name,
				Detail: "the library made it; nothing is on it, and no record and no configuration names it"})
		case l.Type() == "veth" && (a.bridges[master] || made.MatchString(at.Name)), l.Type() == "ifb" && made.MatchString(at.Name):
			a.link(l, master, reached, n.hidden)
		}
	}
	return nil
}

// link judges an interface that is in no result on record.
func (a *auditor) link(l netlink.Link, master string, reached map[int]place, hidden bool) {
	at := l.Attrs()
	f := Finding{Kind: "interface", Object: at.Name, Mend: "ip link delete " + at.Name}
	if master != "" {
		f.Object += " on " + master
	}
	for id, c := range a.cached {
		if slices.Contains(c.interfaces, at.Name) {
			f.ContainerID, f.Mend = id, ""
			a.claim(f)
			return
		}
	}
	f.Whose, f.Detail = Nobody, "it is in no result on record or in libcni's cache"
	if l.Type() == "veth" && at.NetNsID >= 0 { // else both ends are here
		p, ok := reached[at.NetNsID]
		switch {
		case ok && p.stray:
			f.Detail += "; its other end is in namespace " + p.path
		case ok:
			f.Whose, f.Mend = Another, ""
			f.Detail += "; its other end is in namespace " + p.path + ", which is in use"
		case hidden:
			f.Whose, f.Mend = NotAsked, ""
			f.Detail += "; whether its other end is in the namespace of another user's process, root can see"
		default:
			f.Detail += ", and the namespace of its other end has no name and no process"
		}
	}
	a.add(f)
}

// reach returns the namespaces by the numbers that this one knows them by.
func reach(all map[netns.ID]place) map[int]place {
	reached := map[int]place{}
	for _, p := range all {
		file, err := os.Open(p.path)
		if err != nil {
			continue // it has ended meanwhile
		}
		if id, err := netlink.GetNetNsIdByFd(int(file.Fd())); err == nil && id >= 0 {
			reached[id] = p
		}
		file.Close()
	}
	return reached
}
