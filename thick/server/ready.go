package server

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/embedcni/cni/internal/kernel/confwatch"
)

// files waits for files to appear. All calls that wait for one file share one watch, which
// ends with the last of them: the instances of inotify are few.
type files struct {
	mu     sync.Mutex
	awaits map[string]*await
}

// await is the watch of one file.
type await struct {
	waiting int
	ctx     context.Context         // ends with errAppeared, or why it is not noticed when the file appears
	end     context.CancelCauseFunc // the first cause counts
}

// errAppeared: the file exists.
var errAppeared = errors.New("the file exists")

// settled is how long a directory must rest before it is looked at again.
const settled = 10 * time.Millisecond

// wait returns when the file exists, or with an error when draining is closed.
func (f *files) wait(ctx context.Context, path string, draining <-chan struct{}) error {
	if there, err := exists(path); there || err != nil {
		return err
	}
	a := f.join(path)
	defer f.leave(path, a)
	select {
	case <-a.ctx.Done():
		if why := context.Cause(a.ctx); !errors.Is(why, errAppeared) {
			return why
		}
		return nil
	case <-draining:
		return errDraining
	case <-ctx.Done():
		return tryLater("%s does not exist yet: %v", path, context.Cause(ctx))
	}
}

// exists reports whether a file exists. An error means that it cannot be known.
func exists(path string) (bool, error) {
	_, err := os.Stat(path)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return false, nil
	default:
		return false, tryLater("readiness file: %v", err)
	}
}

func (f *files) join(path string) *await {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := f.awaits[path]
	if a == nil {
		a = &await{}
		a.ctx, a.end = context.WithCancelCause(context.Background())
		if f.awaits == nil {
			f.awaits = map[string]*await{}
		}
		f.awaits[path] = a
		go a.run(path)
	}
	a.waiting++
	return a
}

// leave ends the watch if nobody waits any more.
func (f *files) leave(path string, a *await) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if a.waiting--; a.waiting == 0 {
		a.end(nil)
	}
	if f.awaits[path] == a && a.ctx.Err() != nil {
		delete(f.awaits, path) // the next call begins a watch of its own
	}
}

// run watches until the file exists or nobody waits any more.
func (a *await) run(path string) {
	watch := &confwatch.Watch{
		Sources: func() []confwatch.Source { return []confwatch.Source{{Path: path}} },
		Look: func() {
			if there, err := exists(path); err != nil {
				a.end(err)
			} else if there {
				a.end(errAppeared)
			}
		},
		Failed: func(err error) {
			if err != nil { // the Watch tries again, but a caller should rather know
				a.end(tryLater("readiness file %s: %v", path, err))
			}
		},
		Settle: settled,
	}
	if err := watch.Run(a.ctx); err != nil {
		a.end(tryLater("readiness file %s: %v", path, err))
	}
}
