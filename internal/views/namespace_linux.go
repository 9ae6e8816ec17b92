package views

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/internal/thread"
	"github.com/embedcni/cni/netns"
)

// Namespace is what a network namespace had when it was read. Its methods answer
// like those of [links.Conn], with the same errors, and take no system call.
//
// It is immutable and safe for concurrent use. Callers must not change what it
// returns.
type Namespace struct {
	links     []links.Link
	byName    map[string]int // positions in links
	byIndex   map[int]int
	addresses map[int][]links.Address // by the index of the interface
	routes    []links.Route
	through   map[int][]links.Route // by the index of the interface
	torn      bool
}

// ReadNamespace reads a namespace.
func ReadNamespace(ns *netns.Handle) (*Namespace, error) {
	c, err := links.Dial(ns)
	return readAndClose(ns, c, err)
}

// readOn is ReadNamespace on the thread of a tour, and takes less time.
func readOn(tour *thread.Tour, ns *netns.Handle) (*Namespace, error) {
	c, err := links.DialOn(tour, ns)
	return readAndClose(ns, c, err)
}

func readAndClose(ns *netns.Handle, c *links.Conn, err error) (*Namespace, error) {
	if err != nil {
		return nil, err
	}
	n, err := read(c)
	if err != nil {
		err = fmt.Errorf("in namespace %s: %w", ns.ID(), err)
	}
	return n, errors.Join(err, c.Close())
}

// kernel is a namespace of the kernel: a [links.Conn].
type kernel interface {
	Links() ([]links.Link, error)
	AllAddresses() ([]links.Placed, error)
	Routes(index int) ([]links.Route, error)
}

func read(k kernel) (*Namespace, error) {
	var torn bool
	all, err := k.Links()
	if err := tolerate(err, &torn); err != nil {
		return nil, err
	}
	addresses, err := k.AllAddresses()
	if err := tolerate(err, &torn); err != nil {
		return nil, err
	}
	routes, err := k.Routes(everyInterface)
	if err := tolerate(err, &torn); err != nil {
		return nil, err
	}
	n := index(all, addresses, routes)
	n.torn = torn
	return n, nil
}

const everyInterface = 0

// tolerate notes that a list is torn, and returns other errors.
func tolerate(err error, torn *bool) error {
	if errors.Is(err, links.ErrTorn) {
		*torn = true
		return nil
	}
	return err
}

// index arranges what was read.
func index(all []links.Link, addresses []links.Placed, routes []links.Route) *Namespace {
	n := &Namespace{
		links:     all,
		byName:    make(map[string]int, len(all)),
		byIndex:   make(map[int]int, len(all)),
		addresses: make(map[int][]links.Address, len(all)),
		routes:    routes,
		through:   make(map[int][]links.Route, len(all)),
	}
	for at, l := range all {
		n.byIndex[l.Index] = at
		n.byName[l.Name] = at
		for _, other := range l.Others {
			n.byName[other] = at
		}
	}
	for _, a := range addresses {
		n.addresses[a.Interface] = append(n.addresses[a.Interface], a.Address)
	}
	for _, r := range routes {
		n.through[r.Interface] = append(n.through[r.Interface], r)
	}
	return n
}

// Torn reports whether the namespace changed during each of several attempts to
// read it. Something may then seem to be missing that was there all the time.
func (n *Namespace) Torn() bool { return n.torn }

// Links lists the interfaces.
func (n *Namespace) Links() []links.Link { return slices.Clip(n.links) }

// Link finds an interface by one of its names. If there is none,
// [links.NotFound] is true of the error.
func (n *Namespace) Link(name string) (links.Link, error) {
	if at, ok := n.byName[name]; ok && len(name) < unix.IFNAMSIZ {
		return n.links[at], nil
	}
	return links.Link{}, links.Missing(name)
}

// LinkByIndex finds an interface by its index. If there is none,
// [links.NotFound] is true of the error.
func (n *Namespace) LinkByIndex(index int) (links.Link, error) {
	at, ok := n.byIndex[index]
	switch {
	case ok:
		return n.links[at], nil
	case index <= 0: // the kernel takes it for a query without an index
		return links.Link{}, fmt.Errorf("interface %d: %w", index, unix.EINVAL)
	}
	return links.Link{}, fmt.Errorf("interface %d: %w", index, unix.ENODEV)
}

// Addresses returns the addresses of an interface, of both families. An interface
// that does not exist has none.
func (n *Namespace) Addresses(index int) ([]links.Address, error) {
	return slices.Clip(n.addresses[index]), nil
}

// Routes returns the routes through an interface, or all if index is 0, of both
// families and all tables except the local one. If there is no such interface,
// [links.NotFound] is true of the error.
func (n *Namespace) Routes(index int) ([]links.Route, error) {
	if index == everyInterface {
		return slices.Clip(n.routes), nil
	}
	if _, ok := n.byIndex[index]; !ok {
		return nil, fmt.Errorf("list the routes of interface %d: %w", index, unix.ENODEV)
	}
	return slices.Clip(n.through[index]), nil
}
