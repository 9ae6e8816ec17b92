package cni

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/embedcni/cni/internal/store/conflist"
)

// Reloaded is what a Reload has found.
type Reloaded struct {
	// Loaded: the networks of the files are in use now. Unchanged: they were before.
	// Unloaded: the files are gone, and so are the networks; if they were gone before, that
	// is Unchanged too. If none is set, the files cannot be loaded, and the networks are as
	// before.
	Loaded, Unchanged, Unloaded bool
	// Added, Removed and Changed are the names of networks. A network is changed if its
	// configuration or the name of its interface is another one.
	Added, Removed, Changed []string
	// Skipped are files that cannot be used and are not needed.
	Skipped []SkippedFile
	// Err is why the files cannot be loaded.
	Err error
}

// Reload reads the configuration files again that the options of the last New or Load
// name, and loads them if they have changed: those of [WithDefaultConf], [WithAllConf],
// [WithConfFile] and [WithConfListFile]. So it also makes
// up for a Load that failed because a file was missing. netconf.Watch calls it after each
// change.
//
// The networks are replaced as by Load: all or none. While the files cannot be loaded,
// the networks stay as they are, and Ready has the reason. If nothing that the options
// name exists any more, the networks are unloaded: [Runtime.Setup] and Status then return
// [ErrCNINotInitialized]; [Runtime.Remove] and Check go on for containers that are attached.
func (r *Runtime) Reload() Reloaded {
	r.loading.Lock()
	defer r.loading.Unlock()
	previous, want := r.current.Load(), r.wanted
	s, err := load(want, previous)
	asWanted := previous.wanted == want
	switch {
	case err == nil && asWanted && previous.last == nil && previous.readsAs(s):
		r.failed.Store(nil)
		r.outdated.Store(nil)
		return Reloaded{Unchanged: true}
	case err == nil:
		s.logOddities()
		r.store(s)
		found := changes(previous.networks, s.networks)
		found.Loaded, found.Skipped = true, slices.Clone(s.skipped)
		return found
	}
	gone := asWanted && want.isGone(previous)
	err = loadError(err)
	if !gone {
		r.failed.Store(&err)
		r.outdated.Store(&err)
		return Reloaded{Err: err}
	}
	defer func() {
		r.failed.Store(&err)
		r.outdated.Store(nil)
	}()
	if previous.last != nil {
		return Reloaded{Err: err, Unchanged: true}
	}
	r.store(previous.unloaded())
	found := changes(previous.networks, nil)
	found.Unloaded, found.Err = true, err
	return found
}

// readsAs reports whether the same was read from the files.
func (l *loaded) readsAs(now *loaded) bool {
	return slices.Equal(l.skipped, now.skipped) && slices.EqualFunc(l.networks, now.networks, func(a, b *Network) bool {
		return a.same(b) && a.path == b.path
	})
}

// unloaded returns the configuration without its networks.
func (l *loaded) unloaded() *loaded {
	empty := (&build{previous: l}).loaded(l.wanted)
	empty.last = l
	return empty
}

// withNetworks returns the last configuration with networks, if a Reload found that theirs
// are gone. A container that go-cni attached is removed by it.
func (l *loaded) withNetworks() *loaded {
	if l.last != nil {
		return l.last
	}
	return l
}

// isGone reports whether nothing exists any more of what the options name: a directory
// without a file that may be meant, a file that does not exist. Something that cannot
// be read is not gone.
func (want *config) isGone(previous *loaded) bool {
	found := false
	for _, l := range want.loaders {
		if l.from == (origin{}) {
			continue
		}
		err := l.load(&build{settings: &want.settings, previous: previous})
		none := errors.Is(err, conflist.ErrNone) && !errors.As(err, new(*conflist.FileError))
		if l.from.file != "" {
			none = errors.Is(err, fs.ErrNotExist)
		}
		if !none {
			return false
		}
		found = true
	}
	return found
}

// changes compares two lists of networks.
func changes(old, now []*Network) (e Reloaded) {
	for _, n := range now {
		name := n.conf.Config.Name
		switch before := withName(old, name); {
		case slices.Contains(e.Added, name) || slices.Contains(e.Changed, name):
		case len(before) == 0:
			e.Added = append(e.Added, name)
		case !slices.EqualFunc(before, withName(now, name), (*Network).same):
			e.Changed = append(e.Changed, name)
		}
	}
	for _, n := range old {
		if name := n.conf.Config.Name; len(withName(now, name)) == 0 && !slices.Contains(e.Removed, name) {
			e.Removed = append(e.Removed, name)
		}
	}
	return e
}

// Sources returns what [Runtime.Reload] reads: files, and directories with their files and those of
// their subdirectories. They need not exist.
func (r *Runtime) Sources() (files, dirs []string) {
	r.loading.Lock()
	defer r.loading.Unlock()
	for _, l := range r.wanted.loaders {
		switch {
		case l.from.dir:
			dirs = append(dirs, r.wanted.settings.pluginConfDir)
		case l.from.file != "":
			files = append(files, l.from.file)
			// Also if it could not be loaded, for example because that is missing.
			if dir := conflist.Folder(l.from.file); dir != "" {
				dirs = append(dirs, dir)
			}
		}
	}
	for _, n := range r.current.Load().withNetworks().networks {
		if n.path != "" && n.conf.Config.Name != "" { // the plugins' files of a list
			dirs = append(dirs, filepath.Join(filepath.Dir(n.path), n.conf.Config.Name))
		}
	}
	return files, dirs
}
