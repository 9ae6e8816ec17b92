package cni

import (
	"context"
	"time"
)

// Reap looks at all records for abandoned containers, in the foreground, as passes
// in the background do one after the other. A round that is under way there is
// waited for. It returns how many passes it took.
func (r *Runtime) Reap(ctx context.Context) (passes int, err error) {
	s := r.current.Load()
	for {
		if s.reaper.idle() { // else to ask would begin another behind it
			if _, yes := s.reaper.want(s, true); yes {
				break
			}
		}
		select {
		case <-ctx.Done():
			return passes, context.Cause(ctx)
		case <-time.After(time.Millisecond):
		}
	}
	host, err := s.hosts.Open(s.hostNetNS)
	if err != nil {
		return passes, err
	}
	defer func() { err = join(err, host.Close()) }()
	for more := true; more; passes++ {
		perr := s.pass(host)
		if _, more = s.reaper.more(perr != nil); perr != nil {
			return passes, perr
		}
	}
	return passes, nil
}

func (r *reaper) idle() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.busy
}

// Reaped reports whether there has ever been a pass.
func (r *Runtime) Reaped() bool {
	s := r.current.Load()
	s.reaper.mu.Lock()
	defer s.reaper.mu.Unlock()
	return s.reaper.begun
}

// ReadRecordsBy has a test told of each record that is read.
func (r *Runtime) ReadRecordsBy(told func()) {
	store := r.current.Load().records
	read := store.Read
	store.Read = func(path string) ([]byte, error) {
		told()
		return read(path)
	}
}

// ReapNotBefore delays the next pass.
func (r *Runtime) ReapNotBefore(t time.Time) {
	s := r.current.Load()
	s.reaper.mu.Lock()
	defer s.reaper.mu.Unlock()
	s.reaper.next = t
}
