package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni/cnitest"
	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/netns"
)

// kernel judges what the host's network namespace has, and settles what was claimed.
func (a *auditor) kernel(ctx context.Context, path string) (err error) {
	open := netns.Current
	if path != "" {
		open = func() (*netns.Handle, error) { return netns.Open(path) }
	}
	host, err := open()
	if err != nil {
		return fmt.Errorf("host's network namespace: %w", err)
	}
	defer func() { err = joined.Errors(err, host.Close()) }()
	n := a.findNamespaces(host.ID())
	err = host.Do(func() error {
		if err := a.filters(ctx); err != nil {
			return err
		}
		return a.links(n)
	})
	a.settle(n)
	return err
}

// filters judges the rules. The directories are read elsewhere.
func (a *auditor) filters(ctx context.Context) error {
	lines, err := cnitest.Audit(ctx, cnitest.Options{StateDirs: []string{}, NetNSDirs: []string{}})
	if err != nil {
		return err
	}
	a.learn(lines)
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
	reached := a.reach(n.all)
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
		}
	}
	if f.ContainerID = cmp.Or(f.ContainerID, a.hashed[at.Name]); f.ContainerID != "" {
		a.claim(f)
		return
	}
	if l.Type() == "ifb" {
		f.Whose, f.Detail, f.Mend = NotAsked, "the plugin bandwidth made it; of which container it is cannot be told", ""
		a.add(f)
		return
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
			f.Detail += "; whether its other end is in the namespace of a process that cannot be seen, root on the host can tell"
		default:
			f.Detail += ", and the namespace of its other end has no name and no process"
		}
	}
	a.add(f)
}

// reach returns the namespaces by the numbers that this one knows them by.
func (a *auditor) reach(all map[netns.ID]place) map[int]place {
	reached := map[int]place{}
	for _, p := range all {
		file, err := os.Open(p.path)
		if err != nil {
			continue // it has ended meanwhile
		}
		// One without a number has no interface whose other end is here.
		if id, err := netlink.GetNetNsIdByFd(int(file.Fd())); err == nil && id >= 0 {
			reached[id] = p
		}
		if err := file.Close(); err != nil {
			a.unread("namespace", p.path, err)
		}
	}
	return reached
}
