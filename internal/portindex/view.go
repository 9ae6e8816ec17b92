package portindex

import (
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/embedcni/cni/internal/dirwatch"
	"github.com/embedcni/cni/internal/ports"
	"github.com/embedcni/cni/internal/record"
)

// view is the index in memory. A search then takes as long beside ten thousand records
// as beside ten.
//
// The kernel queues a change of the directory before the system call that makes it
// returns. Whoever has written a record for a port while holding the port's lock has
// therefore been heard of by the next who gets that lock.
type view struct {
	watch *dirwatch.Watch // of the records
	at    os.FileInfo     // the directory that is watched

	records ports.ByPort    // those that claim ports
	changed map[string]bool // records that were not read since they changed
}

// newView returns an empty view that hears of changes from now on. It returns nil if
// there are few records, or the kernel cannot watch the directory.
func (x *Index) newView() *view {
	if !x.many {
		return nil
	}
	at, err := os.Stat(x.records.Dir())
	if err != nil {
		return nil
	}
	watch, err := x.watch(x.records.Dir())
	if err != nil {
		x.logger.Debug("the records with host ports are not watched", "error", err)
		return nil
	}
	v := emptyView()
	v.watch, v.at = watch, at
	return v
}

func emptyView() *view { return &view{changed: make(map[string]bool)} }

func (v *view) close() error {
	if v == nil {
		return nil
	}
	return v.watch.Close()
}

// follow notes the records that have changed, and reports whether there is a view of
// all others. A view that may have missed a change is given up.
func (x *Index) follow() bool {
	if x.view == nil {
		return false
	}
	changes, err := x.view.watch.Now()
	at, serr := os.Stat(x.records.Dir()) // another may be mounted there by now
	if err == nil && serr == nil && !changes.Lost && os.SameFile(at, x.view.at) {
		for _, file := range changes.Names {
			if name, ok := strings.CutSuffix(file, record.FileExt); ok {
				x.view.changed[name] = true
			}
		}
		return true
	}
	if err := x.view.close(); err != nil {
		x.logger.Debug("end the watch of the records with host ports", "error", err)
	}
	x.view = nil
	return false
}

// readChanged reads the records that have changed.
func (x *Index) readChanged() {
	for _, name := range slices.Collect(maps.Keys(x.view.changed)) {
		if code, sure := x.read(name); sure {
			x.setCode(name, code)
		}
	}
}

// setCode notes the code of a record that was read or written.
func (x *Index) setCode(name, code string) {
	delete(x.view.changed, name)
	if before := x.view.records.Code(name); before != code && before != "" {
		x.remove(entry{name: name, code: before})
	}
	x.view.records.Set(name, code)
}

// doubt notes that a record could not be read. Without a view every search reads it.
func (v *view) doubt(name string) {
	if v != nil {
		v.changed[name] = true
	}
}

// set enters the code of a record in place of the one it had.
func (v *view) set(name, code string) {
	if v != nil {
		v.records.Set(name, code)
	}
}
