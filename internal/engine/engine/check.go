package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/engine/container"
	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/thread"
	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/internal/run/invoke"
	"github.com/embedcni/cni/internal/run/runner"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/outcome"
)

// Check asks the plugins of the attachments for CHECK, without a path at that of the record.
func (eng *Engine) Check(ctx context.Context, c *Call) error {
	if c.Err == nil && c.Path == "" {
		if rec, err := eng.Store.Records.Load(c.ID); err == nil && rec != nil {
			at := *c
			at.Path, c = rec.NetNS.Path, &at
		}
	}
	op, err := eng.begin(c, "CHECK")
	if errors.Is(err, outcome.ErrInvalidNetNS) && !isKnown(eng, c.ID) {
		err = fmt.Errorf("%w; and it is %w", err, outcome.ErrNotAttached)
	}
	if err == nil {
		defer op.end()
		reaper{eng}.request(op.c.Place.Host, false)
		err = recallToCheck(ctx, op)
	}
	if err != nil {
		return joined.Errorf("check container %q: %w", c.ID, err)
	}
	for _, a := range op.attachments {
		if err := check(ctx, a); err != nil {
			return err
		}
	}
	return nil
}

// recallToCheck locks the container, reads its record, and enters the namespace in which
// its plugins ran.
func recallToCheck(ctx context.Context, op *operation) error {
	err := op.lock(ctx, container.Access{Waiting: container.Looking})
	if err == nil {
		err = op.loadWhole()
	}
	if err == nil && op.c.Recorded.Record != nil && op.c.Recorded.Record.Boot == op.eng.Store.Boot {
		err = op.c.EnterHost(false)
	}
	if err == nil && op.c.Place.HostGone {
		return fmt.Errorf("the host network namespace %s is gone: %w", op.c.Recorded.RecordedHost(), outcome.ErrHostNetNS)
	}
	return err
}

// isKnown reports whether a container may be attached: it is on record, or in libcni's
// cache, or either cannot be read.
func isKnown(eng *Engine, id record.ID) bool {
	rec, err := eng.Store.Records.Load(id)
	if rec != nil || err != nil {
		return true
	}
	cached, err := chain.AllCached(eng.opts.StateDir, string(id))
	return len(cached) > 0 || err != nil
}

// check runs the CHECK of one network, as recorded, if it has one.
func check(ctx context.Context, a *attachment) (err error) {
	ctx, span := runner.NetworkSpan(ctx, "cni.checkNetwork", a.plan.Network.Config.Name, a.plan.IfName)
	defer func() { runner.EndSpan(span, err) }()
	if a.op.c.Recorded.Record != nil {
		a, err = recorded(a)
	} else {
		cache{a.op}.complete(a)
	}
	if err == nil {
		err = a.chain().Check(ctx, &a.plan.Attachment, a.progress.partial)
		if errors.Is(err, libcni.ErrorCheckNotSupp) {
			err = &tagged{err, outcome.ErrNoCheck}
		}
	}
	return a.errors("CHECK", err)
}

// recorded returns the attachment with the configuration, the parameters and the
// result of its ADD; with an error it is the attachment itself.
func recorded(a *attachment) (*attachment, error) {
	n := a.entry()
	if n == nil || n.Network != a.plan.Network.Config.Name || !n.Answered() {
		return a, fmt.Errorf("%s of network %q: %w", a.plan.IfName, a.plan.Network.Config.Name, outcome.ErrNotAttached)
	}
	recorded, err := a.op.fromEntry(n)
	if err != nil {
		return a, err
	}
	recorded.plan.NetNS = a.plan.NetNS
	return recorded, nil
}

// checkFailed returns the failed CHECK as a difference.
func checkFailed(c *comparison) outcome.Difference {
	d := outcome.Difference{
		Network: c.network, IfName: c.ifName, Kind: string(contract.FailedCheck), Err: c.asked.failed,
		Why: "only the plugin knows more; Remove and Setup attach the container again",
	}
	if e := (*outcome.Error)(nil); errors.As(c.asked.failed, &e) {
		d.Plugin = e.Plugin
	}
	return d
}

// notAsked notes why the plugins were not asked. That matters only for a part that
// was not compared either.
func notAsked(c *comparison, why error) {
	if len(c.uncompared) > 0 {
		c.asked.unknown = fmt.Errorf("interface %s of network %q: CHECK was not asked: %w", c.ifName, c.network, why)
	}
}

// defaultCheckBudget is longer than the CHECKs of a thousand containers take, and
// shorter than a start of a program should.
const defaultCheckBudget = 30 * time.Second

// errBudget: the time for CHECKs is used up.
var errBudget = fmt.Errorf("the time for all CHECKs is used up: %w", context.DeadlineExceeded)

// withinBudget bounds the time for CHECKs.
func withinBudget(ctx context.Context, budget time.Duration) (context.Context, context.CancelFunc) {
	switch {
	case budget < 0:
		return ctx, func() {}
	case budget == 0:
		budget = defaultCheckBudget
	}
	return context.WithTimeoutCause(ctx, budget, errBudget)
}

// askAll asks the plugins of containers for CHECK, those of several containers at once.
func (l *look) askAll(ctx context.Context, all []*examined, budget time.Duration) {
	ctx, cancel := withinBudget(ctx, budget)
	defer cancel()
	all = slices.DeleteFunc(slices.Clone(all), func(e *examined) bool { return !e.wantsCheck() })
	thread.Each(len(all), atOnce, func(i int) { l.askOne(ctx, all[i]) })
}

// askOne asks the plugins of a container, which it locks: the specification forbids
// operations of one container that overlap.
func (l *look) askOne(ctx context.Context, e *examined) {
	op, all, err := l.beginAsking(ctx, e.found.Record.ContainerID)
	if op != nil {
		defer op.end()
	}
	for _, c := range e.parts {
		if !c.wantsCheck() {
			continue
		}
		switch a := all.named(c.ifName); {
		case err != nil:
			notAsked(c, err)
		case a == nil || a.unfinished() != nil:
			notAsked(c, fmt.Errorf("it changes: %w", outcome.ErrBusy))
		default:
			checking{a, c}.ask(ctx)
		}
	}
}

// beginAsking locks a container for CHECK, and reads its record again. The operation,
// if it is not nil, has to be ended.
func (l *look) beginAsking(ctx context.Context, id record.ID) (*operation, attachments, error) {
	op, err := l.operation(id)
	if err != nil {
		return nil, nil, err
	}
	brief, cancel := context.WithTimeoutCause(ctx, lockedGrace, outcome.ErrBusy)
	defer cancel()
	if err := op.lock(brief, container.Access{Waiting: container.Looking}); err != nil {
		op.c.Close()
		return nil, nil, err
	}
	if err := op.loadWhole(); err != nil || op.c.Recorded.Record == nil {
		return op, nil, err
	}
	all, err := op.enterRecorded(false)
	if err == nil {
		_, err = op.c.Place.OutOfReach()
	}
	return op, all, err
}

// checking asks the plugins of one attachment for CHECK. The container is locked.
type checking struct {
	a    *attachment
	part *comparison // the comparison, and the answers to CHECK
}

// ask asks those plugins for CHECK that can say more than the comparison, up to the first
// that does not confirm it.
func (q checking) ask(ctx context.Context) {
	list, part := q.a.chain(), q.part
	switch {
	case list.List.DisableCheck:
		return
	case !list.CanCheck():
		if len(part.uncompared) > 0 {
			old := fmt.Errorf("configuration version %q %w", list.List.CNIVersion, libcni.ErrorCheckNotSupp)
			part.asked.unknown = q.a.errors("CHECK", &tagged{old, outcome.ErrNoCheck})
		}
		return
	}
	run := list.Run
	list.Run = func(ctx context.Context, call chain.Call) (chain.Output, error) {
		out, err := run(ctx, call)
		if err != nil && q.excuses(ctx, call, err) {
			return chain.Output{}, nil // the plugins behind it are asked too
		}
		return out, err
	}
	asks := func(position int) bool { return part.asks[position] }
	err := q.a.errors("CHECK", list.CheckSome(ctx, &q.a.plan.Attachment, q.a.progress.partial, asks))
	switch {
	case errors.Is(err, errBudget):
		notAsked(part, err)
		return
	case err == nil:
	case unanswered(err) != nil:
		part.asked.unknown = unanswered(err)
	default:
		part.asked.failed = err
	}
	part.asked.done = true
}

// excuses reports whether the CHECK of a plugin has failed although nothing is wrong, and
// notes that. The attachment is compared anew: if something is wrong with it, the plugin
// may be right.
func (q checking) excuses(ctx context.Context, call chain.Call, failed error) bool {
	failed = q.a.errors("CHECK", failed)
	if unanswered(failed) != nil {
		return false
	}
	e, err := q.excuse(ctx, call)
	if err != nil {
		q.a.op.log().Warn("a CHECK has failed, and the attachment could not be compared", "interface", q.a.plan.IfName, "error", err)
	}
	switch why := fmt.Errorf("%s: %w", e.Why, failed); {
	case err != nil || e.Why == "":
		return false
	case e.Blind:
		q.part.asked.blind = Join(q.part.asked.blind, why)
	default:
		q.part.asked.noted = Join(q.part.asked.noted, why)
	}
	return true
}

func (q checking) excuse(ctx context.Context, call chain.Call) (e contract.Excuse, err error) {
	host := q.a.op.c.Place.Host
	v, err := (&contract.Looks{}).Open(&host.Conns, host.Handle, q.a.inside())
	if err != nil {
		return e, err
	}
	defer func() { err = Join(err, v.Close()) }()
	ipam := ""
	for _, p := range q.a.plan.Network.Config.Plugins {
		if p.Network.Type == call.Plugin {
			ipam = p.Network.IPAM.Type
		}
	}
	r := q.a.runner()
	if its, of, ok, err := r.Delegated(call); ok && err == nil {
		call, ipam = its, of // whose CHECK it was
	}
	if part := q.a.compare(ctx, v); !part.isWhole() || !part.covers(call.Plugin, ipam) {
		return e, nil
	}
	return r.Excuse(ctx, call, ipam, v)
}

// unanswered returns the error of a CHECK with its kind, if it says nothing about the
// container; nil if it is the plugin's own answer.
func unanswered(err error) error {
	var e *outcome.Error
	var exit *invoke.ExitError
	kinds := []error{context.DeadlineExceeded, context.Canceled, outcome.ErrPluginNotFound, outcome.ErrInsecureFile}
	switch {
	case slices.ContainsFunc(kinds, func(kind error) bool { return errors.Is(err, kind) }), !errors.As(err, &e):
		return err
	case e.Code == types.ErrTryAgainLater || e.Code == codeNotAvailable:
		return &tagged{err, outcome.ErrPluginNotReady}
	case e.Code != 0:
		return nil
	case errors.As(err, &exit) && exit.Signal != 0:
		return &tagged{err, outcome.ErrPluginKilled}
	}
	return &tagged{err, outcome.ErrNoAnswer}
}
