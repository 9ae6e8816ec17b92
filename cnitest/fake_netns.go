package cnitest

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/embedcni/cni/netns"
)

// EndNetNS ends the network namespace at path, for example because the machine was
// started anew. Containers in it are gone.
func (f *Fake) EndNetNS(path string) {
	f.h.mu.Lock()
	defer f.h.mu.Unlock()
	f.h.endNetNS(path)
}

// endNetNS ends a namespace. The host is locked.
func (h *fakeHost) endNetNS(path string) {
	h.gone[path] = true
	delete(h.exists, path)
	for _, all := range []map[string]*fakeContainer{h.containers, h.released} {
		for _, c := range all {
			c.dead = c.dead || c.netns == path
		}
	}
}

// NewNetNS makes a network namespace at path. That is needed only after EndNetNS, or if
// Setup with cni.WithNewNetNS is to find the path taken, or SweepNetNS a namespace that no
// container was attached in.
func (f *Fake) NewNetNS(path string) {
	f.h.mu.Lock()
	defer f.h.mu.Unlock()
	f.h.makeNetNS(path)
}

func (h *fakeHost) makeNetNS(path string) {
	delete(h.gone, path)
	if h.exists[path] == 0 {
		h.made++
		h.exists[path] = uint64(h.made)
	}
}

// newPath returns the path of a namespace that does not exist. The host is locked.
func (h *fakeHost) newPath(name string) string {
	h.made++
	return fmt.Sprintf("/run/cnitest/%s-%d", name, h.made)
}

// nsfs is the device of a Fake's namespaces.
const nsfs = 4

// SweepNetNS is Runtime.SweepNetNS of package cni. The namespaces in dir are those that
// NewNetNS or Setup has made, or in which a container was attached. No process is in them.
func (f *Fake) SweepNetNS(dir string, o netns.SweepOptions) (_ *netns.SweepReport, err error) {
	defer f.record(FakeCall{Method: "SweepNetNS"}, &err)
	if o.Prefix == "" {
		return nil, fmt.Errorf("sweep network namespaces in %q: the prefix is empty", dir)
	}
	report := &netns.SweepReport{}
	for _, e := range f.h.pins(dir, o.Prefix) {
		why := f.h.sweep(e, true)
		if why == nil && o.Keep != nil {
			why = o.Keep(e)
		}
		if why == nil {
			why = f.h.sweep(e, o.DryRun)
		}
		if why == nil {
			report.Removed = append(report.Removed, e)
		} else {
			note(&report.Kept, e.Path, why)
		}
	}
	return report, nil
}

// pins returns the namespaces in a directory whose names have a prefix, in order.
func (h *fakeHost) pins(dir, prefix string) (all []netns.Entry) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, path := range slices.Sorted(maps.Keys(h.exists)) {
		if filepath.Dir(path) == filepath.Clean(dir) && strings.HasPrefix(filepath.Base(path), prefix) {
			all = append(all, netns.Entry{Path: path, ID: netns.ID{Dev: nsfs, Ino: h.exists[path]}})
		}
	}
	return all
}

// sweep removes a namespace, unless a container on record is in it.
func (h *fakeHost) sweep(e netns.Entry, dry bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(h.containers)) {
		if h.containers[id].netns == e.Path {
			return fmt.Errorf("container %s is on record: %w", id, netns.ErrBusy)
		}
	}
	if !dry && h.exists[e.Path] == e.ID.Ino {
		h.endNetNS(e.Path)
	}
	return nil
}
