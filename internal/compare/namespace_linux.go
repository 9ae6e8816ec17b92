package compare

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/links"
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
	routes    map[int][]links.Route   // by the index of the interface; 0: all
}

// dialer opens a socket in a namespace.
type dialer func(*netns.Handle) (*links.Conn, error)

func dial(ns *netns.Handle) (*links.Conn, error) { return links.Dial(ns) }

// ReadNamespace reads a namespace.
func ReadNamespace(ns *netns.Handle) (*Namespace, error) { return readNamespace(ns, dial) }

func readNamespace(ns *netns.Handle, dial dialer) (n *Namespace, err error) {
	c, err := dial(ns)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if n, err = read(c); err != nil {
		err = fmt.Errorf("in namespace %s: %w", ns.ID(), err)
	}
	return n, err
}

// kernel is a namespace of the kernel: a [links.Conn].
type kernel interface {
	Links() ([]links.Link, error)
	AllAddresses() ([]links.Placed, error)
	Routes(index int) ([]links.Route, error)
}

// read reads a namespace. The error wraps [links.ErrTorn] if that changed during each of
// several attempts: something would seem to be missing that was there all the time.
func read(k kernel) (*Namespace, error) {
	all, err := k.Links()
	if err != nil {
		return nil, err
	}
	addresses, err := k.AllAddresses()
	if err != nil {
		return nil, err
	}
	routes, err := k.Routes(everyInterface)
	if err != nil {
		return nil, err
	}
	n := &Namespace{
		links:     all,
		byName:    make(map[string]int, len(all)),
		byIndex:   make(map[int]int, len(all)),
		addresses: make(map[int][]links.Address, len(all)),
		routes:    map[int][]links.Route{everyInterface: routes},
	}
	for at, l := range all {
		n.byIndex[l.Index], n.byName[l.Name] = at, at
		for _, other := range l.Others {
			n.byName[other] = at
		}
	}
	for _, a := range addresses {
		n.addresses[a.Interface] = append(n.addresses[a.Interface], a.Address)
	}
	for _, r := range routes {
		n.routes[r.Interface] = append(n.routes[r.Interface], r)
	}
	return n, nil
}

const everyInterface = 0

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
	if _, ok := n.byIndex[index]; !ok && index != everyInterface {
		return nil, fmt.Errorf("list the routes of interface %d: %w", index, unix.ENODEV)
	}
	return slices.Clip(n.routes[index]), nil
}
