package compare

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/internal/parallel"
	"github.com/embedcni/cni/internal/thread"
	"github.com/embedcni/cni/netns"
)

// Looks opens views: of the kernel itself, or of one dump of each host's namespace, for all
// containers whose plugins ran there. The zero Looks opens views of the kernel itself, and
// need not be closed. It is safe for concurrent use.
//
// Questions about a thousand attachments then cost the kernel one look at the host, and
// one at each container. A look only suspects: a namespace may change while it is read,
// and afterwards.
type Looks struct {
	dumps *dumps // nil: the kernel itself
	dial  dialer // opens a socket in a container
}

// dumps are looks at hosts' namespaces.
type dumps struct {
	mu    sync.Mutex
	hosts map[netns.ID]*dump
}

// Dumps returns Looks that read each host's namespace once, when it is first needed,
// and each container's once for each view.
func Dumps() *Looks { return &Looks{&dumps{hosts: make(map[netns.ID]*dump)}, dial} }

// Each calls work for the numbers below n, several at once, with Looks that share what
// they have read. There are as many workers as Go runs threads. Each has a thread for
// itself, which is in the namespace of the process except while it opens a view: views
// of containers open faster there.
func (l *Looks) Each(n int, work func(i int, its *Looks)) {
	var next atomic.Int64
	run := func(dial dialer, lost func() error) error {
		return each(&next, n, func(i int) { work(i, &Looks{l.dumps, dial}) }, lost)
	}
	workers := min(n, runtime.GOMAXPROCS(0))
	parallel.Each(workers, workers, func(int) {
		err := thread.OnTour(func(tour *thread.Tour) error {
			return run(func(ns *netns.Handle) (*links.Conn, error) { return links.DialOn(tour, ns) }, tour.Lost)
		})
		if err != nil { // the rest is work for any thread
			_ = run(dial, func() error { return nil })
		}
	})
}

// each works until nothing is left to do, or the thread is lost.
func each(next *atomic.Int64, n int, work func(i int), lost func() error) error {
	for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
		work(i)
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
	net   *Namespace    // nil: it changed all the time while it was read
	rules *netfilter.Snapshot
	err   error
	// The VLANs of all ports are read when the first container needs them.
	vlans func() (map[int]links.VLANs, error)
}

func (d *dump) read(host *hostns.NetNS) {
	if d.ns, d.err = host.Dup(); d.err != nil {
		return
	}
	if d.net, d.err = ReadNamespace(d.ns.Handle); errors.Is(d.err, links.ErrTorn) {
		d.err = nil
	}
	d.rules = netfilter.Read(netfilter.Open(d.ns.Handle, netfilter.Options{}))
	d.vlans = sync.OnceValues(func() (map[int]links.VLANs, error) {
		c, err := d.ns.Conns.Borrow(d.ns.Handle)
		if err != nil {
			return nil, err
		}
		all, err := c.PortVLANs()
		return all, errors.Join(err, c.Close())
	})
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

// Open returns the view of a container whose plugins ran in host.
func (l *Looks) Open(_ context.Context, host *hostns.NetNS, container *netns.Handle) (*View, error) {
	v := &View{conns: &host.Conns, host: host.Handle}
	err := l.open(v, host, container)
	if err != nil {
		return nil, errors.Join(err, v.Close())
	}
	return v, nil
}

// open fills a view. The kernel itself is asked about a namespace that changed all the time
// while it was read.
func (l *Looks) open(v *View, host *hostns.NetNS, container *netns.Handle) (err error) {
	if l.dumps == nil {
		return v.ask(true, container)
	}
	if v.dump, err = l.dumps.of(host); err != nil {
		return err
	}
	seen, err := readNamespace(container, l.dial)
	if err != nil && !errors.Is(err, links.ErrTorn) {
		return err
	}
	v.Host, v.Container = v.dump.net, seen
	if seen != nil {
		container = nil
	}
	return v.ask(v.dump.net == nil, container)
}
