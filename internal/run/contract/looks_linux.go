package contract

import (
	"errors"
	"fmt"
	"sync"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/kernel/netfilter"
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
	ns    *netns.Handle // of its own
	rules *netfilter.Firewalls
	err   error

	mu      sync.Mutex
	conn    *links.Conn
	answers map[question]any // of the type answer
}

type question struct{ about, of any }

type answer[V any] struct {
	value V
	err   error
}

// ask asks the kernel, unless it was asked before.
func ask[K comparable, V any](d *dump, about string, of K, kernel func(K) (V, error)) (V, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	q := question{about, of}
	a, ok := d.answers[q].(answer[V])
	if !ok {
		a.value, a.err = kernel(of)
		d.answers[q] = a
	}
	return a.value, a.err
}

func (d *dump) Link(name string) (links.Link, error) { return ask(d, "link", name, d.conn.Link) }

func (d *dump) LinkByIndex(index int) (links.Link, error) {
	return ask(d, "link by index", index, d.conn.LinkByIndex)
}

func (d *dump) Addresses(index int) ([]links.Address, error) {
	return ask(d, "addresses", index, d.conn.Addresses)
}

// Queues asks for one interface: the kernel does not list them all.
func (d *dump) Queues(index int) (links.Queues, error) {
	return ask(d, "queues", index, d.conn.Queues)
}

func (d *dump) VLANs(index int) (links.VLANs, error) {
	all, err := ask(d, "VLANs", everyInterface, func(int) (map[int]links.VLANs, error) { return d.conn.PortVLANs() })
	return all[index], err
}

const everyInterface = 0

func (d *dump) Routes(index int) ([]links.Route, error) {
	through, err := ask(d, "all routes", everyInterface, func(every int) (map[int][]links.Route, error) {
		all, err := d.conn.Routes(every)
		through := map[int][]links.Route{every: all}
		for _, r := range all {
			through[r.Interface] = append(through[r.Interface], r)
		}
		return through, err
	})
	if errors.Is(err, links.ErrTorn) { // something may be missing that was there all the time
		return ask(d, "routes", index, d.conn.Routes)
	}
	return through[index], err
}

func (d *dump) read(host *netns.Handle) {
	if d.ns, d.err = netns.Open(fmt.Sprintf("/proc/thread-self/fd/%d", host.File().Fd())); d.err == nil {
		d.conn, d.err = links.Dial(d.ns)
	}
	if d.err == nil {
		d.rules = netfilter.Open(d.ns, netfilter.Options{}).Snapshot()
	}
}

// of returns the dump of a host's namespace.
func (l *Looks) of(host *netns.Handle) (*dump, error) {
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
	return joined.Errors(errs...)
}

// Open returns the view of a container whose plugins ran in host.
func (l *Looks) Open(conns *links.Conns, host, container *netns.Handle) (*View, error) {
	if l.hosts == nil {
		v := &View{Rules: netfilter.Open(host, netfilter.Options{})}
		return v, v.ask(conns, host, container)
	}
	d, err := l.of(host)
	if err != nil {
		return nil, err
	}
	v := &View{Host: d, Rules: d.rules}
	return v, v.ask(conns, nil, container)
}
