package runner

import (
	"fmt"
	"os"

	"github.com/embedcni/cni/internal/run/invoke"
)

// sees returns an error if an executable would find another namespace at the path in
// CNI_NETNS than the container's, because it has another root directory: the mounts of
// the host and of the runtime's container may differ, and so do their process numbers in
// /proc. After a failed ADD there is then nothing to undo, but a DEL has not been run.
func (e *execution) sees() error {
	r, path := e.Runner, invoke.Variable(e.call.Env, "CNI_NETNS")
	if r.Runtime.Root == "" || path == "" {
		return nil
	}
	var want, found os.FileInfo // nil: there is none, or the path cannot be followed
	if r.Container != nil {
		want, _ = r.Container.File().Stat()
	} else {
		want, _ = os.Stat(path)
	}
	err := r.Runtime.Root.Do(func() error {
		found, _ = os.Stat(path)
		return nil
	})
	if err == nil && ((want == nil) != (found == nil) || want != nil && !os.SameFile(want, found)) {
		err = fmt.Errorf("%s is not the container's network namespace in the plugin root %s: "+
			"mount its directory, and /proc, so that the path leads to the same file in both", path, r.Runtime.Root)
	}
	if err != nil && e.call.Verb == "ADD" {
		err = invoke.NotStarted(err)
	}
	return err
}
