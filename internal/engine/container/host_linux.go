package container

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"sync"
	"time"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/kernel/proc"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/outcome"
)

// Host is an open network namespace in which plugins run. It stays open because
// goroutines land on other threads than the caller's. Conns are the sockets in it
// and in the container's namespace.
type Host struct {
	*netns.Handle
	Conns  links.Conns
	finder *Finder // the runtime's
}

// Open opens the namespace at a path, or without one that of the calling thread.
func (f *Finder) Open(path string) (*Host, error) {
	open := netns.Current
	if path != "" {
		open = func() (*netns.Handle, error) { return netns.Open(path) }
	}
	h, err := open()
	if err != nil {
		return nil, fmt.Errorf("network namespace to run plugins in: %w: %w", err, outcome.ErrInvalidNetNS)
	}
	return &Host{Handle: h, finder: f}, nil
}

// Dup opens the namespace once more, for a call of its own.
func (h *Host) Dup() (*Host, error) {
	another, err := netns.Open(fmt.Sprintf("/proc/thread-self/fd/%d", h.File().Fd()))
	if err != nil {
		return nil, err
	}
	return &Host{Handle: another, finder: h.finder}, nil
}

// Close closes the namespace and the sockets.
func (h *Host) Close() error { return joined.Errors(h.Conns.Close(), h.Handle.Close()) }

// String returns the identity of the namespace, as records have it.
func (h *Host) String() string { return h.ID().String() }

// Validate is OpenContainer without opening.
func (h *Host) Validate(path, verb string) (string, error) {
	container, path, err := h.OpenContainer(path, verb)
	if container != nil {
		_ = container.Close() // was only looked at
	}
	return path, err
}

// OpenContainer opens a container's namespace for a verb, checks it, and returns it
// with the path for plugins. A namespace that is gone is legal for DEL: plugins then
// clean up outside of it.
func (h *Host) OpenContainer(path, verb string) (*netns.Handle, string, error) {
	del := verb == "DEL"
	if path == "" {
		switch verb {
		case "DEL":
			return nil, "", nil
		case "ADD":
			return nil, "", fmt.Errorf("no path given; name a namespace, or have one made with WithNewNetNS: %w", outcome.ErrInvalidNetNS)
		}
		return nil, "", fmt.Errorf("no path given; name the container's namespace: %w", outcome.ErrInvalidNetNS)
	}
	container, err := netns.Open(path)
	switch {
	case err == nil:
		return h.Checked(container, path)
	case !del:
		return nil, "", fmt.Errorf("%w: %w", err, outcome.ErrInvalidNetNS)
	case errors.Is(err, netns.ErrNotNetNS), errors.Is(err, fs.ErrNotExist):
		// Either nothing, or the empty file that remains when a namespace mounted
		// there is unmounted. Some plugins would try to enter it and fail, but
		// succeed without a path.
		return nil, "", nil
	default:
		return nil, path, nil
	}
}

// Checked returns the namespace if it can be a container's. Otherwise it closes it.
func (h *Host) Checked(container *netns.Handle, path string) (*netns.Handle, string, error) {
	if err := h.foreign(container.ID(), path); err != nil {
		return nil, path, joined.Errors(err, container.Close())
	}
	return container, path, nil
}

// HasLink reports whether a namespace has an interface of that name.
func (h *Host) HasLink(ns *netns.Handle, name string) (bool, error) {
	l, err := h.Conns.Lookup(ns, name)
	return err == nil && l != nil, err
}

// EndOf returns the index of the end that an interface of another namespace has here, if
// both are the ends of a pair; else 0.
func (h *Host) EndOf(ns *netns.Handle, name string) (index int, err error) {
	own, err := h.Conns.Lookup(ns, name)
	if err != nil || own == nil || own.Kind != "veth" || !own.Peer.Elsewhere {
		return 0, err
	}
	err = h.Conns.Do(h.Handle, func(c *links.Conn) error {
		l, err := c.LinkByIndex(own.Peer.Index)
		if err == nil && l.Kind == "veth" && l.Peer.Elsewhere && l.Peer.Index == own.Index {
			index = l.Index
		}
		return err
	})
	if links.NotFound(err) {
		err = nil
	}
	return index, err
}

// HasAddress reports whether an address is one of the namespace's own.
func (h *Host) HasAddress(addr netip.Addr) (has bool, err error) {
	err = h.Conns.Do(h.Handle, func(c *links.Conn) (err error) {
		has, err = links.IsLocal(c, addr)
		return err
	})
	return has, err
}

// Reachable returns an error unless the kernel answers questions about the namespace.
func (h *Host) Reachable() error {
	_, err := h.Conns.Lookup(h.Handle, "lo")
	return err
}

// Until waits until a condition holds that depends on interfaces of the namespace, or ctx
// ends: it asks at once, and whenever an address or an interface changes. It reports whether
// the condition holds.
func (h *Host) Until(ctx context.Context, holds func() (bool, error)) (yes bool, err error) {
	watch, err := links.WatchAddresses(h.Handle) // before anything vanishes
	if err != nil {
		return false, err
	}
	defer func() { err = joined.Errors(err, watch.Close()) }()
	for {
		if yes, err := holds(); yes || err != nil {
			return yes, err
		}
		if err := watch.Wait(ctx); ctx.Err() != nil {
			return false, nil
		} else if err != nil {
			return false, err
		}
	}
}

// Lasting returns those of the host's ends of veth pairs that still exist.
func (h *Host) Lasting(ends []int) (left []int, err error) {
	if len(ends) == 0 {
		return nil, nil
	}
	err = h.Conns.Do(h.Handle, func(c *links.Conn) error {
		for _, end := range ends {
			l, err := c.LinkByIndex(end)
			if err != nil && !links.NotFound(err) {
				return err
			}
			if err == nil && l.Kind == "veth" {
				left = append(left, end)
			}
		}
		return nil
	})
	return left, err
}

// foreign returns an error if a namespace is the host's. Such a path is a mistake,
// for example a /proc/PID/ns/net whose PID now belongs to another process. A DEL in
// it would remove the host's interfaces.
func (h *Host) foreign(container netns.ID, path string) error {
	whose, err := h.WhoseHost(container, path)
	if err != nil || whose == "" {
		return err
	}
	return fmt.Errorf("%s is the network namespace %s, not a container's; if the container's is gone, remove with an empty path: %w",
		path, whose, outcome.ErrInvalidNetNS)
}

// WhoseHost describes whose namespace ns is if it is the host's, and returns "" if it is
// not. The namespace of this process's leading thread does not count: the usual way
// to make a container's namespace leaves a thread in it for good, and that may be
// the leading thread.
//
// The process's own namespace counts as the host's, also where plugins run in another
// namespace. A program may attach itself, though. So its namespace is accepted as a
// container's if it is mounted at path, but not if path goes through a process, whose
// number may now belong to another process.
func (h *Host) WhoseHost(ns netns.ID, path string) (whose string, err error) {
	if ns == h.ID() {
		return "that plugins run in", nil
	}
	if first, ok := h.finder.first(); ok && ns == first {
		return "of process 1", nil
	}
	if mountedAt(path, ns) {
		return "", nil
	}
	own, err := netns.ProcessID()
	if err == nil && ns == own {
		whose = "of this process"
	}
	return whose, err
}

// Finder finds paths to host namespaces, for the record, and host namespaces by their
// record, for a later call from another namespace.
type Finder struct {
	mu    sync.Mutex
	known map[netns.ID]string

	first func() (netns.ID, bool) // firstNetNS, called once: it is slow, and process 1 does not move

	searching sync.Mutex
	missed    map[string]miss // by identity, as records have it
}

// NewFinder returns a Finder with no results yet.
func NewFinder() *Finder {
	return &Finder{
		known: make(map[netns.ID]string), missed: make(map[string]miss),
		first: sync.OnceValues(func() (netns.ID, bool) { return firstNetNS("/proc") }),
	}
}

// miss is a failed search.
type miss struct {
	at       time.Time
	complete bool
}

// missFor is the time during which a failed search is not repeated: a Recover of
// a thousand containers of one host searches once.
const missFor = time.Second

// PathTo returns a path by which others find the namespace: the configured one, or
// else one that the Finder knows. It returns "" if there is none.
func (f *Finder) PathTo(h *Host, configured string) string {
	if configured != "" {
		if abs, err := filepath.Abs(configured); err == nil {
			return abs
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	path, ok := f.known[h.ID()]
	if ok && (path == "" || leadsTo(path, h.Handle)) {
		return path
	}
	path = firstPath
	if !leadsTo(path, h.Handle) {
		path = ""
		for _, mounted := range proc.Mounts(h.ID().Ino) {
			if leadsTo(mounted, h.Handle) {
				path = mounted
				break
			}
		}
	}
	f.known[h.ID()] = path
	return path
}

// firstPath leads to the namespace of the first process of the machine, or of
// the container.
const firstPath = "/proc/1/ns/net"

// Find opens the namespace in which the plugins of a record ran, looking at the
// configured path too. If it returns nil, certain reports whether the namespace is
// known to be gone.
func (f *Finder) Find(rec *record.Record, configured string) (found *Host, certain bool, err error) {
	var want netns.ID
	if _, err := fmt.Sscanf(rec.Host, "%d:%d", &want.Dev, &want.Ino); err != nil {
		return nil, false, fmt.Errorf("%q is not the identity of a namespace", rec.Host)
	}
	for _, path := range []string{rec.HostPath, configured, firstPath, "/proc/thread-self/ns/net"} {
		if h := openIf(path, want); h != nil {
			return &Host{Handle: h, finder: f}, false, nil
		}
	}
	f.searching.Lock()
	defer f.searching.Unlock()
	if m, ok := f.missed[rec.Host]; ok && time.Since(m.at) < missFor {
		return nil, m.complete && proc.SeesAll(rec.PIDNS), nil
	}
	h, complete, err := search(want, proc.Any)
	if h != nil {
		return &Host{Handle: h, finder: f}, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	f.missed[rec.Host] = miss{time.Now(), complete}
	return nil, complete && proc.SeesAll(rec.PIDNS), nil
}
