package views

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/internal/parallel"
	"github.com/embedcni/cni/internal/thread"
	"github.com/embedcni/cni/netns"
)

// Looks opens views. The zero Looks opens views of the kernel itself, and need not be
// closed. It is safe for concurrent use.
type Looks struct {
	dumps *dumps                                  // nil: the kernel itself
	read  func(*netns.Handle) (*Namespace, error) // a container's namespace
}

// dumps are looks at hosts' namespaces.
type dumps struct {
	mu    sync.Mutex
	hosts map[netns.ID]*dump
}

// Dumps returns Looks that read each host's namespace once, when it is first needed,
// and each container's once for each view.
func Dumps() *Looks {
	return &Looks{&dumps{hosts: make(map[netns.ID]*dump)}, ReadNamespace}
}

// Each calls work for the numbers below n, several at once, with Looks that share what
// they have read. There are as many workers as Go runs threads. Each has a thread for
// itself, which is in the namespace of the process except while it opens a view: views
// of containers open faster there.
func (l *Looks) Each(n int, work func(i int, its *Looks)) {
	e := &each{n: n, work: work}
	workers := min(n, runtime.GOMAXPROCS(0))
	parallel.Each(workers, workers, func(int) {
		err := thread.OnTour(func(tour *thread.Tour) error {
			return e.run(&Looks{l.dumps, func(ns *netns.Handle) (*Namespace, error) { return readOn(tour, ns) }}, tour.Lost)
		})
		if err != nil { // the rest is work for any thread
			_ = e.run(&Looks{l.dumps, ReadNamespace}, func() error { return nil })
		}
	})
}

// each is the work of several workers.
type each struct {
	n    int
	next atomic.Int64
	work func(i int, its *Looks)
}

// run works until nothing is left to do, or the thread is lost.
func (e *each) run(its *Looks, lost func() error) error {
	for i := int(e.next.Add(1)) - 1; i < e.n; i = int(e.next.Add(1)) - 1 {
		e.work(i, its)
		if err := lost(); err != nil {
			return err
		}
	}
	return nil
}

// dump is one look at a host's namespace.
type dump struct {
	once  sync.Once
	ns    *hostns.NetNS // of its own
	net   *Namespace
	rules *netfilter.Firewalls
	torn  bool // see [Namespace.Torn]
	err   error

	// The VLANs of all ports are read when the first container needs them.
	vlansOnce sync.Once
	vlans     map[int]links.VLANs
	vlansErr  error
}

func (d *dump) read(host *hostns.NetNS) {
	if d.ns, d.err = host.Dup(); d.err != nil {
		return
	}
	if d.net, d.err = ReadNamespace(d.ns.Handle); d.err != nil {
		return
	}
	d.torn = d.net.Torn()
	d.rules = netfilter.Open(d.ns.Handle, netfilter.Options{}).Snapshot()
}

// VLANs implements [compare.VLANs].
func (d *dump) VLANs(index int) (links.VLANs, error) {
	d.vlansOnce.Do(func() {
		c, err := d.ns.Conns.Borrow(d.ns.Handle)
		if err != nil {
			d.vlansErr = err
			return
		}
		d.vlans, d.vlansErr = c.PortVLANs()
		d.vlansErr = errors.Join(d.vlansErr, c.Close())
	})
	return d.vlans[index], d.vlansErr
}

// of returns the dump of a host's namespace.
func (l *dumps) of(host *hostns.NetNS) (*dump, error) {
	l.mu.Lock()
	d := l.hosts[host.ID()]
	if d == nil {
		d = &dump{}
		l.hosts[host.ID()] = d
	}
	l.mu.Unlock()
	d.once.Do(func() { d.read(host) })
	return d, d.err
}

// Close releases the namespaces. All views must be closed.
func (l *Looks) Close() error {
	if l.dumps == nil {
		return nil
	}
	l.dumps.mu.Lock()
	defer l.dumps.mu.Unlock()
	var errs []error
	for _, d := range l.dumps.hosts {
		if d.ns != nil {
			errs = append(errs, d.ns.Close())
		}
	}
	l.dumps.hosts = nil
	return errors.Join(errs...)
}

// View is a view of the kernel for one container. It is not safe for concurrent use.
type View struct {
	host           *hostns.NetNS
	rules          *netfilter.Firewalls // nil: the kernel has them
	net, container compare.Net
	vlans          compare.VLANs
	conn, inside   *links.Conn // open sockets; nil if they were not needed
}

// Open returns the view of a container whose plugins ran in host.
func (l *Looks) Open(_ context.Context, host *hostns.NetNS, container *netns.Handle) (*View, error) {
	v := &View{host: host}
	if l.dumps != nil {
		if err := l.open(v, container); err != nil {
			return nil, errors.Join(err, v.Close())
		}
		return v, nil
	}
	var err error
	if v.conn, err = host.Conns.Borrow(host.Handle); err != nil {
		return nil, err
	}
	if v.inside, err = host.Conns.Borrow(container); err != nil {
		return nil, errors.Join(err, v.conn.Close())
	}
	v.net, v.container, v.vlans = v.conn, v.inside, v.conn
	return v, nil
}

// open fills a view of dumps. If a namespace changed all the time while it was read,
// something that exists may be missing in the dump; then the kernel itself is asked.
func (l *Looks) open(v *View, container *netns.Handle) error {
	d, err := l.dumps.of(v.host)
	if err != nil {
		return err
	}
	v.net, v.rules, v.vlans = d.net, d.rules, d
	if d.torn {
		if v.conn, err = v.host.Conns.Borrow(v.host.Handle); err != nil {
			return err
		}
		v.net = v.conn
	}
	seen, err := l.read(container)
	if err != nil {
		return err
	}
	v.container = seen
	if seen.Torn() {
		if v.inside, err = v.host.Conns.Borrow(container); err != nil {
			return err
		}
		v.container = v.inside
	}
	return nil
}

// For returns the view for the comparison of one plugin's part. filters are those of
// its rules.
func (v *View) For(filters netfilter.Options) *compare.View {
	all := &compare.View{Host: v.net, Container: v.container, Queues: v, VLANs: v.vlans}
	if v.rules != nil {
		all.Rules = v.rules.For(filters)
	} else {
		all.Rules = netfilter.Open(v.host.Handle, filters)
	}
	return all
}

// Queues implements [compare.Queues] by the kernel, which has them for one interface
// at a time.
func (v *View) Queues(index int) (_ links.Queues, err error) {
	if v.conn == nil {
		if v.conn, err = v.host.Conns.Borrow(v.host.Handle); err != nil {
			return links.Queues{}, err
		}
	}
	return v.conn.Queues(index)
}

// HasLink reports whether the container has an interface of that name.
func (v *View) HasLink(name string) (bool, error) {
	_, err := v.container.Link(name)
	if links.NotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// Close releases the view.
func (v *View) Close() error {
	var errs []error
	for _, c := range []*links.Conn{v.conn, v.inside} {
		if c != nil {
			errs = append(errs, c.Close())
		}
	}
	return errors.Join(errs...)
}
