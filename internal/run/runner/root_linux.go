package runner

import (
	"fmt"

	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/run/hostns"
	"github.com/embedcni/cni/internal/run/invoke"
	"github.com/embedcni/cni/netns"
)

// sees returns an error if an executable would find another namespace at the path in
// CNI_NETNS than the container's, because it has another root directory: the mounts of
// the host and of the runtime's container may differ, and so do their process numbers in
// /proc. After a failed ADD there is then nothing to undo, but a DEL has not been run.
func (r *Runner) sees(call chain.Call) error {
	path := invoke.Variable(call.Env, "CNI_NETNS")
	if r.Runtime.Root == "" || path == "" {
		return nil
	}
	var want, found netns.ID
	var exists, there bool
	if exists = r.Container != nil; exists {
		want = r.Container.ID()
	} else {
		want, exists = hostns.At(path)
	}
	err := r.Runtime.Root.Do(func() error {
		found, there = hostns.At(path)
		return nil
	})
	if err == nil && (exists != there || found != want) {
		err = fmt.Errorf("%s is not the container's network namespace in the plugin root %s: "+
			"mount its directory, and /proc, so that the path leads to the same file in both", path, r.Runtime.Root)
	}
	if err != nil && call.Verb == "ADD" {
		err = invoke.NotStarted(err)
	}
	return err
}
