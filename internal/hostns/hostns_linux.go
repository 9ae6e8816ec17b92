package hostns

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"

	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/netns"
)

// NetNS is an open network namespace in which plugins run. It stays open because
// goroutines land on other threads than the caller's. Conns are the sockets in it
// and in the container's namespace.
type NetNS struct {
	*netns.Handle
	Conns  links.Conns
	finder *Finder // the runtime's
}

// Open opens the namespace at a path, or without one that of the calling thread.
func (f *Finder) Open(path string) (*NetNS, error) {
	open := netns.Current
	if path != "" {
		open = func() (*netns.Handle, error) { return netns.Open(path) }
	}
	h, err := open()
	if err != nil {
		return nil, fmt.Errorf("network namespace to run plugins in: %w: %w", err, ErrInvalid)
	}
	return &NetNS{Handle: h, finder: f}, nil
}

// Dup opens the namespace once more, for a call of its own.
func (h *NetNS) Dup() (*NetNS, error) {
	another, err := netns.Open(fmt.Sprintf("/proc/thread-self/fd/%d", h.File().Fd()))
	if err != nil {
		return nil, err
	}
	return &NetNS{Handle: another, finder: h.finder}, nil
}

// Close closes the namespace and the sockets.
func (h *NetNS) Close() error { return errors.Join(h.Conns.Close(), h.Handle.Close()) }

// String returns the identity of the namespace, as records have it.
func (h *NetNS) String() string { return h.ID().String() }

// Validate is OpenContainer without opening.
func (h *NetNS) Validate(path, verb string) (string, error) {
	container, path, err := h.OpenContainer(path, verb)
	if container != nil {
		_ = container.Close() // was only looked at
	}
	return path, err
}

// OpenContainer opens a container's namespace for a verb, checks it, and returns it
// with the path for plugins. A namespace that is gone is legal for DEL: plugins then
// clean up outside of it.
func (h *NetNS) OpenContainer(path, verb string) (*netns.Handle, string, error) {
	del := verb == "DEL"
	if path == "" {
		if del {
			return nil, "", nil
		}
		return nil, "", fmt.Errorf("no path given: %w", ErrInvalid)
	}
	container, err := netns.Open(path)
	switch {
	case err == nil:
		return h.Checked(container, path)
	case !del:
		return nil, "", fmt.Errorf("%w: %w", err, ErrInvalid)
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
func (h *NetNS) Checked(container *netns.Handle, path string) (*netns.Handle, string, error) {
	if err := h.foreign(container.ID(), path); err != nil {
		return nil, path, errors.Join(err, container.Close())
	}
	return container, path, nil
}

// HasLink reports whether a namespace has an interface of that name.
func (h *NetNS) HasLink(ns *netns.Handle, name string) (bool, error) {
	l, err := h.Conns.Lookup(ns, name)
	return err == nil && l != nil, err
}

// HasAddress reports whether an address is one of the namespace's own.
func (h *NetNS) HasAddress(addr netip.Addr) (has bool, err error) {
	c, err := h.Conns.Borrow(h.Handle)
	if err != nil {
		return false, err
	}
	has, err = c.IsLocal(addr)
	return has, errors.Join(err, c.Close())
}

// Reachable returns an error unless the kernel answers questions about the namespace.
func (h *NetNS) Reachable() error {
	_, err := h.Conns.Lookup(h.Handle, "lo")
	return err
}

// Lasting returns those of the host's ends of veth pairs that still exist.
func (h *NetNS) Lasting(ends []int) (left []int, err error) {
	if len(ends) == 0 {
		return nil, nil
	}
	c, err := h.Conns.Borrow(h.Handle)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
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
