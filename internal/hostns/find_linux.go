package hostns

import (
	"path/filepath"
	"sync"
	"time"

	"github.com/embedcni/cni/internal/nsfind"
	"github.com/embedcni/cni/internal/proc"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/netns"
)

// Finder finds paths to host namespaces, for the record, and host namespaces by their
// record, for a later call from another namespace.
type Finder struct {
	mu    sync.Mutex
	known map[netns.ID]string

	first func() (netns.ID, bool) // nsfind.First, called once: it is slow, and process 1 does not move

	searching sync.Mutex
	missed    map[string]miss // by identity, as records have it
}

// NewFinder returns a Finder with no results yet.
func NewFinder() *Finder {
	return &Finder{
		known: make(map[netns.ID]string), missed: make(map[string]miss),
		first: sync.OnceValues(func() (netns.ID, bool) { return nsfind.First("/proc") }),
	}
}

// miss is a failed search.
type miss struct {
	at       time.Time
	complete bool
}

// missFor is the time during which a failed search is not repeated: a Recover of
// a thousand containers of one host searches once.
const missFor = time.Second

// PathTo returns a path by which others find the namespace: the configured one, or
// else one that the Finder knows. It returns "" if there is none.
func (f *Finder) PathTo(h *NetNS, configured string) string {
	if configured != "" {
		if abs, err := filepath.Abs(configured); err == nil {
			return abs
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	path, ok := f.known[h.ID()]
	if ok && (path == "" || nsfind.LeadsTo(path, h.Handle)) {
		return path
	}
	path = firstPath
	if !nsfind.LeadsTo(path, h.Handle) {
		path = ""
		for _, mounted := range proc.Mounts(h.ID().Ino) {
			if nsfind.LeadsTo(mounted, h.Handle) {
				path = mounted
				break
			}
		}
	}
	f.known[h.ID()] = path
	return path
}

// firstPath leads to the namespace of the first process of the machine, or of
// the container.
const firstPath = "/proc/1/ns/net"

// Find opens the namespace in which the plugins of a record ran, looking at the
// configured path too. If it returns nil, certain reports whether the namespace is
// known to be gone.
func (f *Finder) Find(rec *record.Record, configured string) (found *NetNS, certain bool, err error) {
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
	for _, path := range []string{rec.HostPath, configured, firstPath, "/proc/thread-self/ns/net"} {
		if path == "" {
			continue
		}
		if h := isIt(path); h != nil {
			return &NetNS{Handle: h, finder: f}, false, nil
		}
	}
	f.searching.Lock()
	defer f.searching.Unlock()
	if m, ok := f.missed[rec.Host]; ok && time.Since(m.at) < missFor {
		return nil, m.complete && proc.SeesAll(rec.PIDNS), nil
	}
	complete, err := proc.EachPath("/proc", rec.Host, func(path string) bool {
		h := isIt(path)
		if h != nil {
			found = &NetNS{Handle: h, finder: f}
		}
		return h != nil
	})
	if found != nil || err != nil {
		return found, false, err
	}
	f.missed[rec.Host] = miss{time.Now(), complete}
	return nil, complete && proc.SeesAll(rec.PIDNS), nil
}
