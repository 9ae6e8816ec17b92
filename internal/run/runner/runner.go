// Package runner runs the plugins of one attachment: it finds the plugin of each
// type, limits its time, makes it wait for its prerequisites, and reports the
// end of the call to the log and the observer. Its Run is a chain.Runner.
package runner

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/kernel/firewalld"
	"github.com/embedcni/cni/internal/kernel/thread"
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

// Runner runs the plugins of one attachment, for one verb at a time.
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

// Event describes one plugin call; see cni.Event.
type Event struct {
	Operation, Network, Plugin string
	PluginKind                 string // a Kind; empty if no plugin ran
	ContainerID, IfName        string
	Duration                   time.Duration
	Err                        error
}

// Run runs the plugin of a type. If two plugins may have attached the container,
// a CHECK succeeds if one of them succeeds, and a DEL runs both.
func (r *Runner) Run(ctx context.Context, call chain.Call) (chain.Output, error) {
	providers, err := r.providers(ctx, call.Verb, call.Plugin, call.Stdin)
	if err != nil {
		return r.runOne(ctx, call, Provider{}, err)
	}
	var out chain.Output
	var errs []error
	for _, p := range providers {
		if out, err = r.runOne(ctx, call, p, nil); err == nil && call.Verb == "CHECK" {
			return out, nil
		}
		errs = append(errs, err)
	}
	return out, errors.Join(errs...)
}

// runOne runs a plugin, unless missing is the reason why there is none, and
// reports its end.
func (r *Runner) runOne(ctx context.Context, call chain.Call, p Provider, missing error) (_ chain.Output, err error) {
	ctx, end := traced(ctx, call, p.Kind)
	defer func() { end(err) }()
	begun := time.Now()
	var out invoke.Output
	var late error
	started := false
	if err = missing; err == nil {
		if late = r.flushBefore(ctx, p, r.Given.Batch, call.Verb); late != nil && call.Verb != "DEL" {
			return chain.Output{}, late
		}
		if err = r.awaitRecord(call.Verb, call.Plugin, p); err == nil {
			out, err = r.execute(ctx, call, p)
			started = p.Kind != Executable || !errors.Is(err, invoke.ErrNotStarted)
		}
	}
	said := failure(call, p.Kind, out, err)
	err = r.failed(said)
	r.report(ctx, "plugin call", r.event(call.Verb, call.Plugin, p.Kind, time.Since(begun), err), out)
	r.Plugins.ended(call, started, err != nil)
	if call.Verb == "DEL" && said.is(unknownContainer) {
		err = nil // the code means that there is nothing to clean
	}
	return chain.Output{Stdout: out.Stdout, Valid: p.Kind == BuiltIn}, both(late, err)
}

// both returns both errors, or the one that there is.
func both(late, err error) error {
	if late == nil {
		return err
	}
	return errors.Join(late, err)
}

// failed is Fail for a failure that may be nil.
func (r *Runner) failed(f *Failure) error {
	if f == nil {
		return nil
	}
	return r.Attachment.Fail(*f)
}

// awaitRecord waits for the record before a plugin runs that may write files.
// The record must survive a power cut before anything else does. A power cut
// clears all kernel state, so built-in plugins make interfaces and rules while
// the record is on its way to the disk. The built-in host-local itself waits
// just before it writes.
func (r *Runner) awaitRecord(verb, typ string, p Provider) error {
	builtIn := p.Kind == BuiltIn && (conflist.Known(typ).KernelOnly || typ == conflist.HostLocal)
	if verb != "ADD" || builtIn {
		return nil
	}
	return r.Attachment.Durable()
}

// StaysInKernel reports whether a power cut undoes everything that the plugins make. Of
// executables that is known of the reference plugins.
func (r *Runner) StaysInKernel(ctx context.Context) bool {
	return conflist.KernelOnly(r.Network.Plugins, func(typ string) bool {
		one, _, _ := r.Plugins.Get(typ)
		return one.found.Kind == BuiltIn || one.found.Kind != Registered && r.IsReference(ctx, typ)
	})
}

// MakesOnlyLo reports whether the chain is the built-in plugin loopback alone.
func (r *Runner) MakesOnlyLo() bool {
	only, _, _ := r.Plugins.Get(conflist.Loopback)
	return len(r.Network.Plugins) == 1 && r.Network.Plugins[0].Network.Type == conflist.Loopback && only.found.Kind == BuiltIn
}

// execute runs a plugin of a chain, within its time for the verb.
func (r *Runner) execute(ctx context.Context, call chain.Call, p Provider) (invoke.Output, error) {
	call, run, err := r.Attachment.Before(call, p.Kind)
	if err != nil || !run {
		return invoke.Output{}, err
	}
	end, err := r.alone(ctx, call, p)
	if err != nil {
		return invoke.Output{}, err
	}
	defer r.witness(ctx, call, p)()
	out, err := r.bounded(ctx, call, p)
	if eerr := end(err == nil); eerr != nil {
		r.Runtime.Logger.Warn("end of a turn", "plugin", call.Plugin, "error", eerr)
	}
	return out, r.Attachment.After(call, p.Kind, err)
}

// witness has the built-in plugin of the type note what the ADD of an executable makes.
// Without the note a comparison takes that for the host's, which is no reason to fail.
func (r *Runner) witness(ctx context.Context, call chain.Call, p Provider) (after func()) {
	w, ok := r.Runtime.BuiltIn(call.Plugin).(contract.Witness)
	if !ok || p.Kind != Executable || call.Verb != "ADD" || r.Host == nil {
		return func() {}
	}
	done, err := w.Witness(r.Lend(ctx, call.Plugin), r.Host, call.Stdin)
	return func() {
		if err == nil {
			err = done()
		}
		if err != nil {
			r.Runtime.Logger.Debug("what the ADD has made counts as the host's",
				"container", r.ContainerID, "network", r.Network.Name, "plugin", call.Plugin, "error", err)
		}
	}
}

func (r *Runner) bounded(ctx context.Context, call chain.Call, p Provider) (invoke.Output, error) {
	ctx, cancel := r.Runtime.Bound(ctx, call.Verb)
	defer cancel()
	r.Given.Batch.For(call.Plugin)
	e := &execution{Runner: r, call: call, p: p, given: r.Given, verb: call.Verb}
	if call.Verb != "ADD" && call.Verb != "DEL" {
		e.given.Batch = nil
	}
	return e.run(ctx)
}

// Bound limits a context to a plugin's time for a verb.
func (r *Runtime) Bound(ctx context.Context, verb string) (context.Context, context.CancelFunc) {
	limit := r.Limit(verb)
	if limit <= 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, limit, &deadlineError{verb, limit})
}

// start runs an executable in the host's namespace. CNI_PATH leads to executables
// beside it, which it may delegate to, even if its directory is no plugin directory
// any more.
func (r *Runner) start(ctx context.Context, call chain.Call, p Provider) (invoke.Output, error) {
	env := call.Env
	if p.elsewhere {
		dirs := append(slices.Clone(r.Runtime.Dirs), filepath.Dir(p.Path))
		env = invoke.WithVariable(env, "CNI_PATH", strings.Join(dirs, string(filepath.ListSeparator)))
	}
	if err := r.sees(call); err != nil {
		return invoke.Output{}, err
	}
	req := invoke.Request{
		Path:    p.Path,
		Root:    r.Runtime.Root,
		Env:     slices.Concat(r.Runtime.Env, env, invoke.TraceEnv(ctx)),
		Stdin:   call.Stdin,
		Inherit: r.Inherit,
	}
	if r.Host != nil {
		req.In = func(start func() error) error { return thread.In(r.Host, start) }
	}
	out, err := invoke.Run(ctx, req, invoke.Limits{})
	if call.Verb == "ADD" && errors.Is(err, invoke.ErrUnknownExit) && isResult(call.Stdin, out.Stdout) {
		return out, nil
	}
	return out, err
}

// isResult reports whether a plugin printed a complete result for its request,
// and no error. That proves that an ADD succeeded whose exit status is lost. The
// other verbs print nothing, so there is no such proof.
func isResult(request, stdout []byte) bool {
	var config, said struct {
		CNIVersion string `json:"cniVersion"`
		Code       uint   `json:"code"`
		Msg        string `json:"msg"`
	}
	if json.Unmarshal(request, &config) != nil || json.Unmarshal(stdout, &said) != nil {
		return false
	}
	return said.Code == 0 && said.Msg == "" && (said.CNIVersion == "" || said.CNIVersion == config.CNIVersion) &&
		chain.ValidateResult(stdout, config.CNIVersion) == nil
}

func (r *Runner) event(verb, plugin string, kind Kind, took time.Duration, err error) Event {
	return Event{
		Operation: verb, Network: r.Network.Name, Plugin: plugin, PluginKind: string(kind),
		ContainerID: string(r.ContainerID), IfName: r.IfName, Duration: took, Err: err,
	}
}

// report reports a plugin's call to the log and the observer.
func (r *Runner) report(ctx context.Context, title string, e Event, out invoke.Output) {
	r.log(ctx, title, e, out)
	if r.Runtime.Observe != nil {
		r.Runtime.Observe(ctx, e)
	}
}

// log writes a line about a plugin's call. stderr is the plugin's log (CNI
// specification 1.1.0, section 5), so it raises the level.
func (r *Runner) log(ctx context.Context, title string, e Event, out invoke.Output) {
	level := slog.LevelDebug
	if len(out.Stderr) > 0 {
		level = slog.LevelInfo
	}
	if !r.Runtime.Logger.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{
		slog.String("operation", e.Operation), slog.String("network", e.Network),
		slog.String("plugin", e.Plugin), slog.String("kind", e.PluginKind),
		slog.String("container", e.ContainerID), slog.String("interface", e.IfName), slog.Duration("took", e.Duration),
	}
	if e.Err != nil {
		// As text: handlers that print %+v would print stderr twice.
		attrs = append(attrs, slog.String("error", e.Err.Error()))
	}
	if len(out.Stderr) > 0 {
		attrs = append(attrs, slog.String("stderr", string(out.Stderr)))
	}
	r.Runtime.Logger.LogAttrs(ctx, level, title, attrs...)
}

// DeletesIPAM asks the IPAM plugin of a plugin whose DEL has failed for a DEL with
// the same request. It reports whether the IPAM plugin holds nothing for the
// attachment. A plugin that cannot be started could not be started for the ADD
// either.
func (r *Runner) DeletesIPAM(ctx context.Context, typ, ipam string) bool {
	all, err := r.providers(ctx, "DEL", ipam, nil)
	if err != nil {
		_, recorded, _ := r.Plugins.Get(ipam) // if it is, it was there for the ADD
		return !recorded && errors.Is(err, invoke.ErrNotFound)
	}
	call, failed := r.Plugins.failedDel(typ)
	call.Plugin = ipam
	for _, p := range all {
		if !failed || !r.deletesIPAM(ctx, call, p) {
			return false
		}
	}
	return true
}

func (r *Runner) deletesIPAM(ctx context.Context, call chain.Call, p Provider) bool {
	ctx, end := traced(ctx, call, p.Kind)
	out, err := r.execute(ctx, call, p)
	said := failure(call, p.Kind, out, err)
	end(r.failed(said))
	return p.Kind == Executable && errors.Is(err, invoke.ErrNotStarted) || said == nil || said.is(unknownContainer)
}
