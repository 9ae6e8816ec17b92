package compare

import (
	"context"
	"errors"
	"sync"

	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/netns"
)

// Looks opens views: of the kernel itself, or of one dump of each host's namespace, for all
// containers whose plugins ran there. The zero Looks opens views of the kernel itself, and
// need not be closed. It is safe for concurrent use.
//
// Questions about a thousand attachments then cost the kernel one look at the host, and
// some questions at each container. A look only suspects: a namespace may change meanwhile,
// and afterwards.
type Looks struct {
	mu    sync.Mutex
	hosts map[netns.ID]*dump // nil: the kernel itself
}

// Dumps returns Looks that ask once about what containers of a host share.
func Dumps() *Looks { return &Looks{hosts: make(map[netns.ID]*dump)} }

// dump is one look at a host's namespace: what many containers ask about is asked once, and
// all routes and VLANs together. It is a [Net], and safe for concurrent use.
type dump struct {
	once  sync.Once
	ns    *hostns.NetNS // of its own
	rules *netfilter.Firewalls
	err   error

	mu      sync.Mutex
	conn    *links.Conn
	answers map[question]any // of the type answer
}

type question struct {
	about string
	name  string
	index int
}

type answer[V any] struct {
	value V
	err   error
}

// ask asks the kernel, unless it was asked before.
func ask[V any](d *dump, q question, kernel func() (V, error)) (V, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	a, ok := d.answers[q].(answer[V])
	if !ok {
		a.value, a.err = kernel()
		d.answers[q] = a
	}
	return a.value, a.err
}

func (d *dump) Link(name string) (links.Link, error) {
	return ask(d, question{about: "link", name: name}, func() (links.Link, error) { return d.conn.Link(name) })
}

func (d *dump) LinkByIndex(index int) (links.Link, error) {
	return ask(d, question{about: "link by index", index: index}, func() (links.Link, error) { return d.conn.LinkByIndex(index) })
}

func (d *dump) Addresses(index int) ([]links.Address, error) {
	return ask(d, question{about: "addresses", index: index}, func() ([]links.Address, error) { return d.conn.Addresses(index) })
}

func (d *dump) Routes(index int) ([]links.Route, error) {
	through, err := ask(d, question{about: "routes"}, func() (map[int][]links.Route, error) {
		all, err := d.conn.Routes(everyInterface)
		through := map[int][]links.Route{everyInterface: all}
		for _, r := range all {
			through[r.Interface] = append(through[r.Interface], r)
		}
		return through, err
	})
	if errors.Is(err, links.ErrTorn) { // something may be missing that was there all the time
		return ask(d, question{about: "routes through one", index: index}, func() ([]links.Route, error) { return d.conn.Routes(index) })
	}
	return through[index], err
}

const everyInterface = 0

func (d *dump) VLANs(index int) (links.VLANs, error) {
	all, err := ask(d, question{about: "VLANs"}, d.conn.PortVLANs)
	return all[index], err
}

// Queues asks for one interface: the kernel does not list them all.
func (d *dump) Queues(index int) (links.Queues, error) {
	return ask(d, question{about: "queues", index: index}, func() (links.Queues, error) { return d.conn.Queues(index) })
}

func (d *dump) read(host *hostns.NetNS) {
	if d.ns, d.err = host.Dup(); d.err == nil {
		d.conn, d.err = d.ns.Conns.Borrow(d.ns.Handle)
	}
	if d.err == nil {
		d.rules = netfilter.Open(d.ns.Handle, netfilter.Options{}).Snapshot()
	}
}

// of returns the dump of a host's namespace.
func (l *Looks) of(host *hostns.NetNS) (*dump, error) {
	l.mu.Lock()
	d := l.hosts[host.ID()]
	if d == nil {
		d = &dump{answers: make(map[question]any)}
		l.hosts[host.ID()] = d
	}
	l.mu.Unlock()
	d.once.Do(func() { d.read(host) })
	return d, d.err
}

// Close releases the namespaces. All views must be closed.
func (l *Looks) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for _, d := range l.hosts {
		if d.conn != nil {
			errs = append(errs, d.conn.Close())
		}
		if d.ns != nil {
			errs = append(errs, d.ns.Close())
		}
	}
	clear(l.hosts)
	return errors.Join(errs...)
}

// Open returns the view of a container whose plugins ran in host.
func (l *Looks) Open(_ context.Context, host *hostns.NetNS, container *netns.Handle) (_ *View, err error) {
	v := &View{host: host.Handle}
	if l.hosts != nil {
		if v.dump, err = l.of(host); err != nil {
			return nil, err
		}
		v.Host = v.dump
	}
	return v, v.ask(&host.Conns, container)
}
