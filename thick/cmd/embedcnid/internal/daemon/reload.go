package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/embedcni/cni/thick/cmd/embedcnid/internal/config"
)

// reload reads the configuration again, and the networks' files too if somebody has asked
// for it. One that is refused changes nothing.
func (d *daemon) reload(asked bool) {
	old := *d.config.Load()
	merged := old
	var changed, restart []string
	next, err := d.Load()
	defer func() { d.own.reload(err) }()
	if err == nil {
		merged, changed, restart = old.Merge(next)
	}
	d.noteConfiguration(err, restart, asked)
	if len(changed) == 0 && !asked {
		return
	}
	d.systemd.reloading()
	defer d.systemd.ready()
	if aerr := d.apply(&merged); aerr != nil {
		err = aerr
		d.noteConfiguration(err, restart, asked)
	} else if err == nil {
		d.log.Info("configuration reloaded", "changed", changed)
	}
}

// noteConfiguration notes why a configuration is not, or not wholly, in force.
func (d *daemon) noteConfiguration(err error, restart []string, asked bool) {
	why := ""
	switch {
	case err != nil:
		why = "refused, and the last good one is in use: " + err.Error()
	case len(restart) > 0:
		why = "restart to use " + strings.Join(restart, ", ")
	}
	if why == "" {
		d.conditions.set("configuration", met, "")
	} else {
		d.conditions.set("configuration", doubtful, why)
	}
	if why != "" && (why != d.refused || asked) { // else the log has it
		if err != nil {
			d.log.Error("configuration refused; the last good one is in use", "error", err)
		} else {
			d.log.Warn("configuration changed; restart to use it", "keys", restart)
		}
	}
	d.refused = why
}

// apply puts the values in force that can change. An address that cannot be listened at is
// tried again at the next reload.
func (d *daemon) apply(c *config.Config) error {
	err := d.probes.listen(c.HTTP.Address)
	c.HTTP.Address = d.probes.address
	d.config.Store(c)
	d.level.Set(c.Log.SlogLevel())
	d.loadNetworks(c)
	d.guarding.guard(d.runtime, c.Guard)
	return err
}

// A file is read when nothing has changed for settle, or while changes go on after settleMost:
// between its beginning and its end it may be valid and mean something else.
const (
	settle     = 100 * time.Millisecond
	settleMost = time.Second
)

// watchFile has the configuration read again after changes in the directory of its file, and
// in that to which links of the file lead: a mounted ConfigMap is replaced by a link.
func (d *daemon) watchFile(ctx context.Context) {
	if err := follow(ctx, d.Path, d.changed); err != nil {
		d.log.Error("changes of the configuration are not noticed; SIGHUP has it read again", "error", err)
		d.conditions.set("configuration", doubtful, "changes are not noticed: "+err.Error())
	}
}

// follow sends to changed after changes around a file, and once at its beginning, until ctx
// ends.
func follow(ctx context.Context, path string, changed chan<- struct{}) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer w.Close()
	due, first := time.After(0), time.Now() // it may have changed since it was read
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.Events:
			if due == nil {
				first = time.Now()
			}
			due = time.After(min(settle, max(0, settleMost-time.Since(first))))
		case err := <-w.Errors:
			if !errors.Is(err, fsnotify.ErrEventOverflow) {
				return err
			}
			due = time.After(settle)
		case <-due:
			due = nil
			if err := watchAround(w, path); errors.Is(err, fs.ErrNotExist) {
				due = time.After(settleMost) // nothing announces that the directory is there again
			} else if err != nil {
				return err
			}
			select {
			case changed <- struct{}{}:
			default: // it will be read anyway
			}
		}
	}
}

// watchAround watches the directory of a file, and the one of the file that links lead to.
func watchAround(w *fsnotify.Watcher, path string) error {
	if err := w.Add(filepath.Dir(path)); err != nil {
		return fmt.Errorf("watch %s: %w", filepath.Dir(path), err)
	}
	if target, err := filepath.EvalSymlinks(path); err == nil { // else it is gone, and may come back
		if err := w.Add(filepath.Dir(target)); err != nil && !errors.Is(err, fsnotify.ErrClosed) {
			return fmt.Errorf("watch %s: %w", filepath.Dir(target), err)
		}
	}
	return nil
}
