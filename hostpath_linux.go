package cni

import (
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/nsfind"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/netns"
)

// hostPaths knows where host namespaces are found: for the record, so that a
// later call from another namespace can enter the one that the plugins ran in.
type hostPaths struct {
	mu    sync.Mutex
	known map[netns.ID]string

	first func() (netns.ID, bool) // firstNetNS, called once: process 1 does not move

	searching sync.Mutex
	missed    map[string]miss // by identity, as records have it
}

func newHostPaths() *hostPaths {
	return &hostPaths{first: sync.OnceValues(func() (netns.ID, bool) { return nsfind.First("/proc") })}
}

// miss is a search that found nothing.
type miss struct {
	at       time.Time
	complete bool
}

// missFor is how long a search that found nothing is not repeated: a Recover of a
// thousand containers of one host looks once.
const missFor = time.Second

// hostPath returns a path to the namespace that the plugins run in, for others to
// find it by; empty if there is none.
func (op *operation) hostPath() string {
	if op.hostNetNS != "" {
		if abs, err := filepath.Abs(op.hostNetNS); err == nil {
			return abs
		}
	}
	return op.paths.to(op.host)
}

func (p *hostPaths) to(h *hostNetNS) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	path, ok := p.known[h.ID()]
	if ok && (path == "" || nsfind.LeadsTo(path, h.Handle)) {
		return path
	}
	path = firstPath
	if !nsfind.LeadsTo(path, h.Handle) {
		path = ""
		for _, mounted := range nsfind.Mounts("thread-self", h.ID().Ino) {
			if nsfind.LeadsTo(mounted, h.Handle) {
				path = mounted
				break
			}
		}
	}
	if p.known == nil {
		p.known = make(map[netns.ID]string)
	}
	p.known[h.ID()] = path
	return path
}

// firstPath leads to the namespace of the machine's, or the container's, first
// process.
const firstPath = "/proc/1/ns/net"

// findHost opens the namespace that a record says its plugins ran in; nil if it is
// not found, and then whether it is gone for certain.
func (op *operation) findHost(rec *record.Record) (found *hostNetNS, certain bool, err error) {
	isIt := func(path string) *netns.Handle {
		h, err := netns.Open(path)
		if err != nil {
			return nil
		}
		if h.ID().String() != rec.Host {
			_ = h.Close() // was only looked at
			return nil
		}
		return h
	}
	for _, path := range []string{rec.HostPath, op.hostNetNS, firstPath, "/proc/thread-self/ns/net"} {
		if path == "" {
			continue
		}
		if h := isIt(path); h != nil {
			return &hostNetNS{Handle: h, paths: op.paths}, false, nil
		}
	}
	op.paths.searching.Lock()
	defer op.paths.searching.Unlock()
	if m, ok := op.paths.missed[rec.Host]; ok && time.Since(m.at) < missFor {
		return nil, m.complete && seesAll(rec), nil
	}
	complete, err := nsfind.Each("/proc", rec.Host, func(path string) bool {
		h := isIt(path)
		if h != nil {
			found = &hostNetNS{Handle: h, paths: op.paths}
		}
		return h != nil
	})
	if found != nil || err != nil {
		return found, false, err
	}
	if op.paths.missed == nil {
		op.paths.missed = make(map[string]miss)
	}
	op.paths.missed[rec.Host] = miss{time.Now(), complete}
	return nil, complete && seesAll(rec), nil
}

// initPIDNS is the inode of the machine's first PID namespace (PROC_PID_INIT_INO
// in the kernel's include/linux/proc_ns.h).
const initPIDNS = 0xEFFFFFFC

// seesAll reports whether every process that can be in the record's host
// namespace is visible from this one: it is in the PID namespace of the runtime
// that wrote the record, or in the machine's first.
func seesAll(rec *record.Record) bool {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &st); err != nil {
		return false
	}
	return st.Ino == initPIDNS || rec.PIDNS != 0 && st.Ino == rec.PIDNS
}
