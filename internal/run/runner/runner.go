// Package runner runs the plugins of one attachment: it finds the plugin of each
// type, limits its time, makes it wait for its prerequisites, and reports the
// end of the call to the log and the observer. Its Run is a chain.Runner.
package runner

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/kernel/firewalld"
	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/internal/run/invoke"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/internal/store/lock"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/netns"
)

// Runtime has the settings that the attachments of a runtime share.
type Runtime struct {
	Choice
	Env        []string                              // limit of one plugin's time; not positive: none
	Limit      func(verb string) time.Duration       // how long one plugin may run; not positive: without limit
	Observe    func(ctx context.Context, call Event) // called after each call of a chain; may be nil
	Logger     *slog.Logger
	Bus        *firewalld.Bus
	Locks      *lock.Space
	First      *Firsts
	References *References
}

// Runner runs the plugins of one attachment, for one verb at a time. It has what all their
// calls have in common; an execution is one of them.
type Runner struct {
	Runtime     *Runtime
	Plugins     *Plugins
	Network     *libcni.NetworkConfigList
	ContainerID record.ID // the caller's; plugins may know another
	IfName      string
	Host        *netns.Handle  // where plugins run
	Container   *netns.Handle  // nil if it is not open
	Inherit     []*os.File     // the container's lock, which executables keep after the runtime's death
	Given       contract.Given // to built-in plugins; its Batch is for ADD and DEL
	Attachment  Attachment
}

// Attachment is the attachment that a Runner runs plugins for.
type Attachment interface {
	// Append adds an entry to the attachment's record.
	Append(record.Entry) error
	// Durable waits until the record survives a power cut.
	Durable() error
	// Before returns a call of the chain as it may run; run is false if it must
	// not run at all.
	Before(call chain.Call, kind Kind) (_ chain.Call, run bool, err error)
	// After is called when the plugin has returned err. It returns the error of
	// the call.
	After(call chain.Call, kind Kind, err error) error
	// Fail returns the caller's error for a failure.
	Fail(Failure) error
}

// Run runs the plugin of a type. If two plugins may have attached the container,
// a CHECK succeeds if one of them succeeds, and a DEL runs both.
func (r *Runner) Run(ctx context.Context, call chain.Call) (chain.Output, error) {
	providers, err := r.providers(ctx, call.Verb, call.Plugin, call.Stdin)
	if err != nil {
		return newExecution(r, call, Provider{}).runOne(ctx, err)
	}
	var out chain.Output
	var errs []error
	for _, p := range providers {
		if out, err = newExecution(r, call, p).runOne(ctx, nil); err == nil && call.Verb == "CHECK" {
			return out, nil
		}
		errs = append(errs, err)
	}
	return out, joined.Errors(errs...)
}

// StaysInKernel reports whether a power cut undoes everything that the plugins make. Of
// executables that is known of the reference plugins.
func (r *Runner) StaysInKernel(ctx context.Context) bool {
	return conflist.KernelOnly(r.Network.Plugins, func(typ string) bool {
		one, _, _ := r.Plugins.Get(typ)
		return one.found.Kind == BuiltIn || one.found.Kind != Registered && r.Runtime.isReference(ctx, typ, one.Path)
	})
}

// MakesOnlyLo reports whether the chain is the built-in plugin loopback alone.
func (r *Runner) MakesOnlyLo() bool {
	only, _, _ := r.Plugins.Get(conflist.Loopback)
	return len(r.Network.Plugins) == 1 && r.Network.Plugins[0].Network.Type == conflist.Loopback && only.found.Kind == BuiltIn
}

// Bound limits a context to a plugin's time for a verb.
func (r *Runtime) Bound(ctx context.Context, verb string) (context.Context, context.CancelFunc) {
	limit := r.Limit(verb)
	if limit <= 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, limit, &deadlineError{verb, limit})
}

// DeletesIPAM asks the IPAM plugin of a plugin whose DEL has failed for a DEL with
// the same request. It reports whether the IPAM plugin holds nothing for the
// attachment. A plugin that cannot be started could not be started for the ADD
// either. One that has just hung is not asked again.
func (r *Runner) DeletesIPAM(ctx context.Context, typ, ipam string) bool {
	if r.Plugins.hangs(ipam) {
		return false
	}
	all, err := r.providers(ctx, "DEL", ipam, nil)
	if err != nil {
		_, recorded, _ := r.Plugins.Get(ipam) // if it is, it was there for the ADD
		return !recorded && errors.Is(err, invoke.ErrNotFound)
	}
	call, failed := r.Plugins.failedDel(typ)
	call.Plugin = ipam
	for _, p := range all {
		if !failed || !newExecution(r, call, p).deletesIPAM(ctx) {
			return false
		}
	}
	return true
}
