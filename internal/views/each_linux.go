package views

import (
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/internal/thread"
	"github.com/embedcni/cni/netns"
)

// reader reads namespaces one after the other. It belongs to a worker of [eachNamespace].
type reader struct {
	tour *thread.Tour // nil: the worker has no thread for itself
}

// Read is ReadNamespace, and takes less time.
func (r *reader) Read(ns *netns.Handle) (*Namespace, error) {
	if r.tour == nil {
		return ReadNamespace(ns)
	}
	c, err := links.DialOn(r.tour, ns)
	if err != nil {
		return nil, err
	}
	return readAndClose(ns, c)
}

// eachNamespace calls work for the numbers below n, several at once: there are as many
// workers as Go runs threads. Each worker has a thread for itself, which is in the
// namespace of the process except within Read.
func eachNamespace(n int, work func(i int, r *reader)) {
	e := &each{n: n, work: work}
	var workers sync.WaitGroup
	for range min(n, runtime.GOMAXPROCS(0)) {
		workers.Go(func() {
			if err := thread.OnTour(e.onTour); err != nil {
				// The rest is work for any thread.
				e.run(&reader{}, func() error { return nil })
			}
		})
	}
	workers.Wait()
}

// each is the work of several workers.
type each struct {
	n    int
	next atomic.Int64
	work func(i int, r *reader)
}

func (e *each) onTour(tour *thread.Tour) error {
	return e.run(&reader{tour}, tour.Lost)
}

// run works until nothing is left to do, or the thread is lost.
func (e *each) run(r *reader, lost func() error) error {
	for i := int(e.next.Add(1)) - 1; i < e.n; i = int(e.next.Add(1)) - 1 {
		e.work(i, r)
		if err := lost(); err != nil {
			return err
		}
	}
	return nil
}
