package leftovers

import (
	"fmt"
	"log/slog"
	"slices"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/engine/container"
	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/netns"
)

// NoEndError means that the host does not show whether a container's namespace has
// ended.
type NoEndError struct {
	Network, Why string
}

func (e *NoEndError) Error() string {
	return fmt.Sprintf("network %q: %s, so the host does not show when the namespace has ended; call Remove if the container is gone",
		e.Network, e.Why)
}

func (a *Attachment) noEnd(why string, args ...any) error {
	return &NoEndError{a.List.Name, fmt.Sprintf(why, args...)}
}

// LetGo stops keeping the namespace of an abandoned container alive. It returns the
// interfaces on the host that will vanish with the namespace and still exist. The
// error is a *NoEndError if they do not show when the namespace has ended.
//
// It writes the record first: otherwise a namespace that another process keeps would
// be taken for one that has ended.
func LetGo(c *container.Container, all []*Attachment, logger *slog.Logger) (left []int, err error) {
	if c.Recorded.Record.LetGo == nil {
		note := &record.LetGo{}
		if !c.Place.HostGone { // otherwise its interfaces have ended with it
			if note.Ends, err = hostEnds(c.Place.Host, c.Place.NetNS, all); err != nil {
				return nil, err
			}
		}
		if err := c.Recorded.Note(record.Entry{LetGo: note}); err != nil {
			return nil, err
		}
		c.Recorded.Record.LetGo = note
		logger.Info("stopped keeping the network namespace of an abandoned container",
			"container", c.Recorded.ID, "path", c.Recorded.Record.NetNS.Path)
	}
	if err := c.Recorded.Unpin(); err != nil {
		return nil, err
	}
	return c.Place.Host.Lasting(c.Recorded.Record.LetGo.Ends)
}

// hostEnds returns the indexes of the host's ends of all the attachments'
// interfaces. An index finds an end again after its name or hardware address has
// changed. Ends that have vanished are left out. container is nil if no path leads to
// the container's namespace.
func hostEnds(host *container.Host, container *netns.Handle, all []*Attachment) (ends []int, err error) {
	tied := false
	for _, a := range all {
		if a.onlyLoopback() {
			continue
		}
		if err := a.tiedToHost(); err != nil {
			return nil, err
		}
		end, err := a.hostEnd(host, container)
		if err != nil {
			return nil, err
		}
		if end != 0 {
			ends = append(ends, end)
		}
		tied = true
	}
	if !tied {
		return nil, all[0].noEnd("it has no interface but lo")
	}
	return ends, nil
}

func (a *Attachment) onlyLoopback() bool {
	return !slices.ContainsFunc(a.List.Plugins, func(p *libcni.PluginConfig) bool {
		return conflist.Known(p.Network.Type).Makes != conflist.Lo || a.Ran.IsCallers(p.Network.Type)
	})
}

// tiedToHost returns an error unless the attachment's plugins make a veth pair, whose
// two ends vanish together, and the sweep covers everything else that they leave on
// the host.
func (a *Attachment) tiedToHost() error {
	for i, p := range a.List.Plugins {
		typ := p.Network.Type
		switch makes := conflist.Known(typ).Makes; {
		case a.Ran.IsCallers(typ):
			return a.noEnd("plugin %q is the caller's", typ)
		case i == 0 && makes != conflist.Veth:
			return a.noEnd("plugin %q keeps no interface on the host", typ)
		case i > 0 && makes == conflist.Veth, makes.NeedsIdentity(), !a.Covers(typ):
			return a.noEnd("plugin %q may have more than interfaces of its own", typ)
		}
	}
	return nil
}

// hostEnd returns the index of the attachment's end on the host, or 0 if the end has
// vanished for certain: the result named it and the container's namespace is gone too, or
// the container's namespace has no device left.
func (a *Attachment) hostEnd(host *container.Host, container *netns.Handle) (index int, err error) {
	var macs []string
	for _, reported := range Of(a).Interface.HostEnds {
		l, err := host.Conns.Lookup(host.Handle, reported.Name)
		switch {
		case err != nil:
			return 0, err
		case l == nil:
			macs = append(macs, reported.MAC)
		case l.Kind == "veth":
			return l.Index, nil
		} // else the bridge, which may have the address of another container's end
	}
	if container != nil { // results of old CNI versions list no interfaces
		if index, err := host.EndOf(container, a.Params.IfName); index != 0 || err != nil {
			return index, err
		}
	}
	all, err := host.Conns.Links(host.Handle)
	if err != nil {
		return 0, err
	}
	if l := find(all, func(l links.Link) bool { return l.Kind == "veth" && slices.Contains(macs, l.MAC.String()) }); l != nil {
		return l.Index, nil // it was renamed
	}
	gone := len(macs) > 0
	if container != nil {
		inside, err := host.Conns.Links(container)
		if err != nil {
			return 0, err
		}
		gone = find(inside, isDevice) == nil
	}
	if gone {
		return 0, nil
	}
	return 0, a.noEnd("the host's end of %s is not known", a.Params.IfName)
}

// isDevice reports whether an interface was added to its namespace. The kernel
// creates lo and the fallback tunnels in each namespace.
func isDevice(l links.Link) bool { return l.Name != "lo" && !l.IsFallback() }
