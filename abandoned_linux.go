package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/internal/nsfind"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/netns"
)

// here runs f, locked to its thread, with the view of that thread.
func here(f func(view string)) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	f(nsfind.View())
}

// isAbandoned reports whether a record describes an abandoned container: all its
// attachments are this owner's, and its path certainly no longer leads to its
// namespace. It is false unless view is the view in which the path was recorded.
func (s *snapshot) isAbandoned(rec *record.Record, view string) bool {
	if rec.Boot != s.boot || s.boot == "" || view == "" || rec.NetNS.View != view ||
		rec.Warm || rec.NetNS.Ours || rec.NetNS.Ino == 0 {
		return false
	}
	attached := false
	for i := range rec.Networks {
		if rec.Networks[i].State == record.Deleted {
			continue
		}
		if rec.OwnerOf(&rec.Networks[i]) != s.owner {
			return false
		}
		attached = true
	}
	return attached && leadsAway(rec.NetNS.Path, netns.ID{Dev: rec.NetNS.Dev, Ino: rec.NetNS.Ino})
}

// leadsAway reports whether a path certainly does not lead to a namespace: the path
// does not exist, or leads to something else. It is false for a path that cannot be
// followed, and for one that depends on the process that follows it.
func leadsAway(path string, ns netns.ID) bool {
	if !filepath.IsAbs(path) {
		return false
	}
	for _, own := range []string{"/proc/self/", "/proc/thread-self/", "/dev/fd/"} {
		if strings.HasPrefix(filepath.Clean(path), own) {
			return false
		}
	}
	var st unix.Stat_t
	for {
		err := unix.Stat(path, &st)
		switch {
		case err == nil:
			return netns.ID{Dev: uint64(st.Dev), Ino: st.Ino} != ns
		case !errors.Is(err, unix.EINTR):
			return nsfind.LeadsNowhere(err)
		}
	}
}

// noEndError means that the host does not show whether a container's namespace has
// ended.
type noEndError struct {
	network, why string
}

func (e *noEndError) Error() string {
	return fmt.Sprintf("network %q: %s, so the host does not show when the namespace has ended; call Remove if the container is gone",
		e.network, e.why)
}

// hostEnds returns the indexes of the host's ends of all the container's
// interfaces. An index finds an end again after its name or hardware address has
// changed. Ends that have vanished are left out.
func (op *operation) hostEnds() (ends []int, err error) {
	if op.hostGone {
		return nil, nil // its interfaces have ended with it
	}
	tied := false
	for _, a := range op.attachments {
		if a.onlyLoopback() {
			continue
		}
		if err := a.tiedToHost(); err != nil {
			return nil, err
		}
		end, err := a.hostEnd()
		if err != nil {
			return nil, err
		}
		if end != 0 {
			ends = append(ends, end)
		}
		tied = true
	}
	if !tied {
		return nil, &noEndError{op.rec.Networks[0].Name, "it has no interface but lo"}
	}
	return ends, nil
}

func (a *attachment) onlyLoopback() bool {
	for _, p := range a.network.config.Plugins {
		if known.Of(p.Network.Type).Makes != known.Lo || a.isCallers(p.Network.Type) {
			return false
		}
	}
	return true
}

// tiedToHost returns an error unless the attachment's plugins make a veth pair, whose
// two ends vanish together, and the sweep covers everything else that they leave on
// the host.
func (a *attachment) tiedToHost() error {
	network := a.network.config.Name
	for i, p := range a.network.config.Plugins {
		typ := p.Network.Type
		switch makes := known.Of(typ).Makes; {
		case a.isCallers(typ):
			return &noEndError{network, fmt.Sprintf("plugin %q is the caller's", typ)}
		case i == 0 && makes != known.Veth:
			return &noEndError{network, fmt.Sprintf("plugin %q keeps no interface on the host", typ)}
		case i > 0 && makes == known.Veth, makes.NeedsIdentity(), !a.sweeps(typ):
			return &noEndError{network, fmt.Sprintf("plugin %q may have more than interfaces of its own", typ)}
		}
	}
	return nil
}

// hostEnd returns the index of the attachment's end on the host, or 0 if the end has
// vanished.
func (a *attachment) hostEnd() (index int, err error) {
	c, err := a.op.host.Conns.Borrow(a.op.host.Handle)
	if err != nil {
		return 0, err
	}
	defer func() { err = join(err, c.Close()) }()
	var macs []string
	if result := decodeResult(json.RawMessage(a.partial)); result != nil {
		for _, i := range result.Interfaces {
			if i.Sandbox != "" {
				continue
			}
			l, err := c.Link(i.Name)
			switch {
			case links.NotFound(err):
				macs = append(macs, i.Mac)
			case err != nil:
				return 0, err
			case l.Kind == "veth":
				return l.Index, nil
			} // else the bridge, which may have the address of another container's end
		}
	}
	if index, err := a.endInside(c); index != 0 || err != nil {
		return index, err
	}
	all, err := c.Links()
	if err != nil {
		return 0, err
	}
	for _, l := range all { // it may have been renamed
		if l.Kind == "veth" && slices.Contains(macs, l.MAC.String()) {
			return l.Index, nil
		}
	}
	return 0, a.vanished(macs)
}

// endInside finds the host's end through its peer in the container's namespace.
// Results of old CNI versions list no interfaces.
func (a *attachment) endInside(host *links.Conn) (index int, err error) {
	if a.op.container == nil {
		return 0, nil
	}
	c, err := a.op.host.Conns.Borrow(a.op.container)
	if err != nil {
		return 0, err
	}
	defer func() { err = join(err, c.Close()) }()
	own, err := c.Link(a.IfName)
	if links.NotFound(err) || err == nil && (own.Kind != "veth" || !own.Peer.Elsewhere) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	l, err := host.LinkByIndex(own.Peer.Index)
	if links.NotFound(err) || err == nil && (l.Kind != "veth" || l.Peer.Index != own.Index || !l.Peer.Elsewhere) {
		return 0, nil
	}
	return l.Index, err
}

// vanished returns nil if the end on the host, which was not found, has certainly
// vanished: the result named it and the container's namespace is gone too, or the
// container's namespace has no device left.
func (a *attachment) vanished(macs []string) error {
	if a.op.container == nil && len(macs) > 0 {
		return nil
	}
	if a.op.container != nil {
		inside, err := a.op.linksIn(a.op.container)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(inside, isDevice) {
			return nil
		}
	}
	return &noEndError{a.network.config.Name, "the host's end of " + a.IfName + " is not known"}
}

// isDevice reports whether an interface was added to its namespace. The kernel
// creates lo and the fallback tunnels in each namespace.
func isDevice(l links.Link) bool {
	return l.Name != "lo" && !isFallback(l.Kind)
}

// settleLetGo finds out whether a namespace that the runtime let go, and to which no
// path leads, has ended. The kernel may have given its number to another namespace.
// So once its interfaces have vanished it has ended, even if a process is in a
// namespace with that number.
func (op *operation) settleLetGo() error {
	if op.rec.LetGo == nil || op.container != nil || op.hostGone {
		return nil
	}
	left, err := op.host.Lasting(op.rec.LetGo.Ends)
	if err != nil {
		return fmt.Errorf("check whether the network namespace of container %s has ended: %w", op.id, err)
	}
	switch {
	case len(left) == 0:
		op.reached = notReached
	case op.reached == notReached:
		op.reached = letGo
	}
	return nil
}
