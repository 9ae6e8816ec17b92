package cni

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/container"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/invoke"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/spans"
)

// Check asks the plugins of the loaded networks, or of those selected with
// WithNetwork, whether the attachment is as Setup left it, with the configuration and
// the parameters of Setup. It stops at the first error, and returns ErrNotAttached if
// there was no Setup, whatever the path. A configuration older than 0.4.0 has no CHECK and returns an
// error that says so; one with disableCheck is skipped.
func (r *Runtime) Check(ctx context.Context, id string, path string, opts ...NamespaceOpts) (err error) {
	s := r.current.Load()
	ctx, span := spans.Call(ctx, "cni.Check", id, path)
	defer func() { endCall(span, err) }()
	if err := r.ready(s); err != nil {
		return err
	}
	ns, err := newNamespace(id, path, opts...)
	if err != nil {
		return fmt.Errorf("check container %q: %w", id, err)
	}
	return s.check(ctx, ns)
}

func (s *snapshot) check(ctx context.Context, ns *Namespace) error {
	op, err := s.begin(ns, "CHECK")
	if errors.Is(err, ErrInvalidNetNS) && !s.isKnown(ns.id) {
		err = fmt.Errorf("%w; and it is %w", err, ErrNotAttached)
	}
	if err != nil {
		return fmt.Errorf("check container %q: %w", ns.id, err)
	}
	defer op.end()
	s.reap(op.Host, false)
	if err := op.lock(ctx, container.Access{Waiting: container.Looking}); err != nil {
		return fmt.Errorf("check container %q: %w", ns.id, err)
	}
	damage, err := op.load()
	if err = join(err, damage); err != nil {
		return fmt.Errorf("check container %q: %w", ns.id, err)
	}
	if rec := op.Record; rec != nil && rec.Boot == op.Boot {
		if err := op.EnterHost(false); err != nil {
			return fmt.Errorf("check container %q: %w", ns.id, err)
		}
		if op.HostGone {
			return fmt.Errorf("check container %q: the host network namespace %s is gone: %w", ns.id, op.RecordedHost(), ErrHostNetNS)
		}
	}
	for _, a := range op.attachments {
		if err := a.check(ctx); err != nil {
			return err
		}
	}
	return nil
}

// isKnown reports whether a container may be attached: it is on record, or in libcni's
// cache, or either cannot be read.
func (s *snapshot) isKnown(id record.ID) bool {
	rec, err := s.Records.Load(id)
	if rec != nil || err != nil {
		return true
	}
	cached, err := chain.AllCached(s.stateDir, string(id))
	return len(cached) > 0 || err != nil
}

// check runs the CHECK of one network, as recorded, if it has one.
func (a *attachment) check(ctx context.Context) (err error) {
	ctx, span := spans.Network(ctx, "cni.checkNetwork", a.network.config.Name, a.IfName)
	defer func() { spans.End(span, err) }()
	if a.op.Record != nil {
		a, err = a.recorded()
	} else {
		a.useCached()
	}
	if err == nil {
		err = a.chain().Check(ctx, &a.Attachment, a.partial)
	}
	return a.errors("CHECK", err)
}

// recorded returns the attachment with the configuration, the parameters and the
// result of its ADD; with an error it is the attachment itself.
func (a *attachment) recorded() (*attachment, error) {
	n := a.entry()
	if n == nil || n.Network != a.network.config.Name || !n.Answered() {
		return a, fmt.Errorf("%s of network %q: %w", a.IfName, a.network.config.Name, ErrNotAttached)
	}
	recorded, err := a.op.fromEntry(n)
	if err != nil {
		return a, err
	}
	recorded.NetNS = a.NetNS
	return recorded, nil
}

// asked is the outcome of the CHECKs of an attachment's plugins.
type asked struct {
	done    bool
	failed  error // of the plugin that said that something is wrong
	unknown error // why no plugin said anything
}

// wantsCheck reports whether a CHECK of a plugin of the attachment can say more than
// the comparison.
func (c *compared) wantsCheck() bool {
	for _, asks := range c.asks {
		if asks {
			return true
		}
	}
	return false
}

// unjudged returns the types of plugins whose part nobody has judged, because CHECK is
// not wanted.
func (c *compared) unjudged() []string {
	if c.asked != (asked{}) {
		return nil
	}
	return c.uncompared
}

// checkFailed returns the failed CHECK as a difference.
func (c *compared) checkFailed() Difference {
	d := Difference{
		Network: c.network, IfName: c.ifName, Kind: KindCheck, Err: c.asked.failed,
		Why: "only the plugin knows more; Remove and Setup attach the container again",
	}
	if e := (*Error)(nil); errors.As(c.asked.failed, &e) {
		d.Plugin = e.Plugin
	}
	return d
}

// notAsked notes why the plugins were not asked. That matters only for a part that
// was not compared either.
func (c *compared) notAsked(why error) {
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
func (s *snapshot) askAll(ctx context.Context, host *hostns.NetNS, all []*examined, budget time.Duration) HealthChecks {
	begun := time.Now()
	ctx, cancel := withinBudget(ctx, budget)
	defer cancel()
	var sum HealthChecks
	var adding sync.Mutex
	var group sync.WaitGroup
	next := make(chan *examined)
	for range min(atOnce, len(all)) {
		group.Add(1)
		go func() {
			defer group.Done()
			for e := range next {
				one := s.askOne(ctx, host, e)
				adding.Lock()
				sum.add(one)
				adding.Unlock()
			}
		}()
	}
	for _, e := range all {
		if e.wantsCheck() {
			next <- e
		}
	}
	close(next)
	group.Wait()
	sum.Took = time.Since(begun)
	return sum
}

func (h *HealthChecks) add(o HealthChecks) {
	h.Asked += o.Asked
	h.Failed += o.Failed
	h.Unanswered += o.Unanswered
	h.NotAsked += o.NotAsked
}

func (e *examined) wantsCheck() bool {
	for _, c := range e.parts {
		if c.wantsCheck() {
			return true
		}
	}
	return false
}

// askOne asks the plugins of a container, which it locks: the specification forbids
// operations of one container that overlap.
func (s *snapshot) askOne(ctx context.Context, host *hostns.NetNS, e *examined) (sum HealthChecks) {
	op, all, err := s.beginAsking(ctx, host, e)
	if op != nil {
		defer op.end()
	}
	for _, c := range e.parts {
		if !c.wantsCheck() {
			continue
		}
		a := all.named(c.ifName)
		switch {
		case err != nil:
			c.notAsked(err)
			sum.NotAsked++
		case a == nil || a.unfinished() != nil:
			c.notAsked(fmt.Errorf("it changes: %w", ErrBusy))
			sum.NotAsked++
		default:
			sum.add(a.ask(ctx, c))
		}
	}
	return sum
}

// beginAsking locks a container for CHECK, and reads its record again. The operation,
// if it is not nil, has to be ended.
func (s *snapshot) beginAsking(ctx context.Context, host *hostns.NetNS, e *examined) (*operation, attachments, error) {
	its, err := host.Dup()
	if err != nil {
		return nil, nil, err
	}
	op := &operation{snapshot: s, Container: s.New(e.found.Record.ContainerID, its)}
	brief, cancel := context.WithTimeoutCause(ctx, lockedGrace, ErrBusy)
	defer cancel()
	if err := op.lock(brief, container.Access{Waiting: container.Looking}); err != nil {
		op.Close()
		return nil, nil, err
	}
	damage, err := op.load()
	if err = join(err, damage); err != nil || op.Record == nil {
		return op, nil, err
	}
	all, err := op.enterRecorded(false)
	if err == nil {
		_, err = op.outOfReach()
	}
	return op, all, err
}

// named returns the attachment with that interface name, or nil.
func (all attachments) named(ifName string) *attachment {
	for _, a := range all {
		if a.IfName == ifName {
			return a
		}
	}
	return nil
}

// ask asks those plugins of the attachment for CHECK that can say more than the
// comparison, up to the first that does not confirm it. The container is locked.
func (a *attachment) ask(ctx context.Context, c *compared) (sum HealthChecks) {
	list := a.chain()
	switch {
	case list.List.DisableCheck:
		return sum
	case !list.CanCheck():
		if len(c.uncompared) > 0 {
			old := fmt.Errorf("configuration version %q %w", list.List.CNIVersion, libcni.ErrorCheckNotSupp)
			c.asked.unknown = a.errors("CHECK", &tagged{old, ErrNoCheck})
		}
		return sum
	}
	run := list.Run
	list.Run = func(ctx context.Context, call chain.Call) (chain.Output, error) {
		sum.Asked++
		return run(ctx, call)
	}
	err := a.errors("CHECK", list.CheckSome(ctx, &a.Attachment, a.partial, func(position int) bool { return c.asks[position] }))
	switch {
	case errors.Is(err, errBudget):
		c.notAsked(err)
		sum.NotAsked++
		return sum
	case err == nil:
	default:
		if c.asked.unknown = unanswered(err); c.asked.unknown != nil {
			sum.Unanswered++
		} else {
			c.asked.failed = err
			sum.Failed++
		}
	}
	c.asked.done = true
	return sum
}

// unanswered returns the error of a CHECK with its kind, if it says nothing about the
// container; nil if it is the plugin's own answer.
func unanswered(err error) error {
	for _, kind := range []error{context.DeadlineExceeded, context.Canceled, ErrPluginNotFound, ErrInsecureFile} {
		if errors.Is(err, kind) {
			return err
		}
	}
	var e *Error
	var exit *invoke.ExitError
	switch {
	case !errors.As(err, &e):
		return err
	case e.Code == types.ErrTryAgainLater || e.Code == codeNotAvailable:
		return &tagged{err, ErrPluginNotReady}
	case e.Code != 0:
		return nil
	case errors.As(err, &exit) && exit.Signal != 0:
		return &tagged{err, ErrPluginKilled}
	}
	return &tagged{err, ErrNoAnswer}
}
