package cachedports

import (
	"os"

	"github.com/embedcni/cni/internal/dirwatch"
)

// watchFrom is the number of files from which on the directory is watched. To list fewer
// takes some microseconds, and a watch is one of the user's few inotify instances.
const watchFrom = 64

// watch hears of each file that changes.
type watch struct {
	*dirwatch.Watch
	at os.FileInfo // the directory that is watched
}

// follow reads the files that have changed, and reports whether all others are known. A
// watch that may have missed a change is given up.
func (c *Cache) follow() bool {
	if c.watch == nil {
		return false
	}
	changes, err := c.watch.Now()
	at, serr := os.Stat(c.dir) // another may be mounted there by now
	if err == nil && serr == nil && !changes.Lost && os.SameFile(at, c.watch.at) {
		for _, name := range changes.Names {
			c.look(name)
		}
		return true
	}
	if err := c.watch.Close(); err != nil {
		c.logger.Debug("end the watch of libcni's cache", "error", err)
	}
	c.watch = nil
	return false
}

// list returns the names of all files. If there are many it begins to watch them first, so
// that it hears of all later changes.
func (c *Cache) list() ([]string, error) {
	names, err := namesIn(c.dir)
	if err != nil || len(names) < watchFrom {
		return names, err
	}
	at, err := os.Stat(c.dir)
	if err != nil {
		return nil, err
	}
	w, err := c.open(c.dir)
	if err != nil {
		c.logger.Debug("libcni's cache is not watched", "error", err)
		return names, nil
	}
	c.watch = &watch{w, at}
	return namesIn(c.dir)
}
