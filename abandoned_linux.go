package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/netns"
)

// view identifies where paths lead to from the calling thread; see
// [record.NetNS]. It is empty if that cannot be found out.
func view() string {
	var mounts, pids, root unix.Stat_t
	if unix.Stat("/proc/thread-self/ns/mnt", &mounts) != nil ||
		unix.Stat("/proc/thread-self/ns/pid", &pids) != nil || unix.Stat("/", &root) != nil {
		return ""
	}
	return fmt.Sprintf("mnt:[%d] pid:[%d] root:%d:%d", mounts.Ino, pids.Ino, root.Dev, root.Ino)
}

// here runs f on a thread that stays in the mount namespace of the view.
func here(f func(view string)) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	f(view())
}

// isAbandoned reports whether a record is of a container of this owner alone whose
// path certainly leads to another thing than its namespace, seen from where it
// was recorded.
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

// leadsAway reports whether a path certainly does not lead to a namespace: there is
// nothing, or something else. One that cannot be followed, or that leads elsewhere
// for each process, says nothing.
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
			return leadsNowhere(err)
		}
	}
}

// leadsNowhere reports whether an error says that a path leads to no namespace,
// rather than that it could not be followed.
func leadsNowhere(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, netns.ErrNotNetNS) ||
		errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ESRCH)
}

// noEndError: nothing on the host says whether a container's namespace has ended.
type noEndError struct {
	network, why string
}

func (e *noEndError) Error() string {
	return fmt.Sprintf("network %q: %s, so nothing on the host tells when the namespace has ended; call Remove if the container is gone",
		e.network, e.why)
}

// hostEnds finds the ends on the host of all interfaces of the container, by index,
// so that neither a new name nor a new hardware address hides them. An end that
// has vanished already is left out.
func (op *operation) hostEnds() (ends []int, err error) {
	if op.hostGone {
		return nil, nil // with all that was in it
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
		if p.Network.Type != "loopback" || a.isCallers("loopback") {
			return false
		}
	}
	return true
}

// tiedToHost is an error unless the attachment's plugins make a veth pair, whose
// ends go together, and the sweep knows all else that they leave on the host.
func (a *attachment) tiedToHost() error {
	network := a.network.config.Name
	for i, p := range a.network.config.Plugins {
		typ := p.Network.Type
		switch makes := typ == "bridge" || typ == "ptp"; {
		case a.isCallers(typ):
			return &noEndError{network, fmt.Sprintf("plugin %q is the caller's", typ)}
		case i == 0 && !makes:
			return &noEndError{network, fmt.Sprintf("plugin %q keeps no interface on the host", typ)}
		case i > 0 && makes, identifies(typ), !a.sweeps(typ):
			return &noEndError{network, fmt.Sprintf("plugin %q may have more than interfaces of its own", typ)}
		}
	}
	return nil
}

// hostEnd returns the index of the attachment's end on the host, 0 if that has
// vanished.
func (a *attachment) hostEnd() (index int, err error) {
	c, err := a.op.host.conns.Borrow(a.op.host.handle())
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
	all, err := linksIn(a.op.host.handle())
	if err != nil {
		return 0, err
	}
	for _, l := range all { // it may have been renamed
		if l.Type() == "veth" && slices.Contains(macs, l.Attrs().HardwareAddr.String()) {
			return l.Attrs().Index, nil
		}
	}
	return 0, a.vanished(macs)
}

// endInside finds the end by the other one, in the container's namespace: results
// of old versions list no interfaces.
func (a *attachment) endInside(host *links.Conn) (index int, err error) {
	if a.op.container == nil {
		return 0, nil
	}
	c, err := a.op.host.conns.Borrow(a.op.container)
	if err != nil {
		return 0, err
	}
	defer func() { err = join(err, c.Close()) }()
	own, err := c.Link(a.IfName)
	if links.NotFound(err) || err == nil && (own.Kind != "veth" || !own.PeerElsewhere) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	l, err := host.LinkByIndex(own.Peer)
	if links.NotFound(err) || err == nil && (l.Kind != "veth" || l.Peer != own.Index || !l.PeerElsewhere) {
		return 0, nil
	}
	return l.Index, err
}

// vanished is an error if it is not known whether the end on the host has vanished,
// or where it was.
func (a *attachment) vanished(macs []string) error {
	if a.op.container == nil && len(macs) > 0 {
		return nil
	}
	if a.op.container != nil {
		inside, err := linksIn(a.op.container)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(inside, isDevice) {
			return nil
		}
	}
	return &noEndError{a.network.config.Name, "the host's end of " + a.IfName + " is not known"}
}

// isDevice reports whether an interface is not one that each namespace has.
func isDevice(l netlink.Link) bool {
	return l.Attrs().Name != "lo" && !isFallback(l.Type())
}

// lasting are those of the interfaces that are still there.
func (h *hostNetNS) lasting(ends []int) (left []int, err error) {
	if len(ends) == 0 {
		return nil, nil
	}
	c, err := h.conns.Borrow(h.handle())
	if err != nil {
		return nil, err
	}
	defer func() { err = join(err, c.Close()) }()
	for _, end := range ends {
		l, err := c.LinkByIndex(end)
		if err != nil && !links.NotFound(err) {
			return nil, err
		}
		if err == nil && l.Kind == "veth" {
			left = append(left, end)
		}
	}
	return left, nil
}

// settleLetGo finds out whether a namespace that was let go, and to which nothing
// leads, has ended. Its number may be another's by now, so that the end of its
// interfaces counts for more than a process in one with that number.
func (op *operation) settleLetGo() error {
	if op.rec.LetGo == nil || op.container != nil || op.hostGone {
		return nil
	}
	left, err := op.host.lasting(op.rec.LetGo.Ends)
	if err != nil {
		return fmt.Errorf("has the network namespace of container %s ended: %w", op.id, err)
	}
	switch {
	case len(left) == 0:
		op.reached = notReached
	case op.reached == notReached:
		op.reached = letGo
	}
	return nil
}
