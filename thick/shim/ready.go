package shim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/dirwatch"
	"github.com/embedcni/cni/thick/internal/wire"
)

// pollEvery is the time between two questions to a daemon that is there and not ready, as
// Multus' shim asks. The daemon announces to nobody when that ends.
const pollEvery = 100 * time.Millisecond

// notReadyError: the daemon answers, and does not serve ADD.
type notReadyError struct {
	status int
	said   string
}

func (e *notReadyError) Error() string {
	return fmt.Sprintf("the daemon is not ready (status %d): %s", e.status, e.said)
}

// ready asks once whether the daemon serves ADD. Daemons before Multus v4.3.1 know only
// whether they are alive.
func (d *daemon) ready(ctx context.Context) error {
	status, said, err := d.post(ctx, wire.PathReady, []byte("null"))
	if err == nil && status == http404 {
		status, said, err = d.post(ctx, wire.PathHealth, []byte("null"))
	}
	if err == nil && status != http200 {
		err = &notReadyError{status, wire.DecodeError(status, said).Error()}
	}
	return err
}

// waitReady waits until the daemon serves ADD. A daemon that is not there yet is noticed
// when its socket appears.
func (d *daemon) waitReady(ctx context.Context, within time.Duration) error {
	bounded, cancel := context.WithTimeout(ctx, cmp.Or(within, DefaultReadyWithin))
	defer cancel()
	if within < 0 {
		bounded = ctx
	}
	err := d.ready(bounded)
	if within < 0 || !mayBecomeReady(err) {
		return err
	}
	w := watchNearest(filepath.Dir(d.socket))
	defer func() { w.close() }()
	for {
		// The watch is older than this question, so a socket that appears after it wakes
		// the wait.
		if again := d.ready(bounded); bounded.Err() == nil || again == nil {
			err = again
		}
		if !mayBecomeReady(err) {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if bounded.Err() != nil {
			return types.NewError(types.ErrTryAgainLater, fmt.Sprintf("the daemon was not ready within %v", cmp.Or(within, DefaultReadyWithin)), err.Error())
		}
		w = w.wait(bounded, filepath.Dir(d.socket))
	}
}

// mayBecomeReady reports whether a later question may have another answer.
func mayBecomeReady(err error) bool {
	return errors.Is(err, errGone) || errors.As(err, new(*notReadyError)) ||
		errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded)
}

// nearest watches a directory for the file that is awaited in it, or the nearest
// existing one above it.
type nearest struct {
	dir   string
	watch *dirwatch.Watch // nil if there is none: then only the time wakes
}

func watchNearest(dir string) *nearest {
	for {
		at := existing(dir)
		watch, err := dirwatch.OpenNames(at)
		if err != nil {
			return &nearest{at, nil}
		}
		if existing(dir) == at {
			return &nearest{at, watch}
		}
		_ = watch.Close() // the directory has come or gone meanwhile
	}
}

// existing returns the directory, or the nearest above it that exists.
func existing(dir string) string {
	for {
		if info, err := os.Stat(dir); err == nil && info.IsDir() || filepath.Dir(dir) == dir {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}

// wait returns when something has changed in the directory, or after pollEvery: a socket
// has its name before its owner listens, and nothing announces that it does. The result
// is the watch to use from then on.
func (n *nearest) wait(ctx context.Context, dir string) *nearest {
	ctx, cancel := context.WithTimeout(ctx, pollEvery)
	defer cancel()
	if n.watch == nil || n.watch.Wait(ctx) != nil {
		<-ctx.Done()
	} else if _, err := n.watch.Now(); err != nil {
		<-ctx.Done()
	}
	if existing(dir) == n.dir {
		return n
	}
	n.close()
	return watchNearest(dir)
}

func (n *nearest) close() {
	if n.watch != nil {
		_ = n.watch.Close() // it was only read
	}
}
