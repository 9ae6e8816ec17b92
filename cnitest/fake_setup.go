package cnitest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/known"
)

// fakeProgress is the progress of an attachment.
type fakeProgress int

const (
	fakePlanned fakeProgress = iota
	fakeAdded
	fakeDeleting
)

// fakeAttachment is an attachment on record.
type fakeAttachment struct {
	cni.PlannedAttachment
	owner    string
	call     int // which Setup of the container
	progress fakeProgress
	from, to int    // the plugins that its ADD runs; a pool has run those before
	warm     bool   // a pool has made it ahead of time, and no container uses it yet
	begun    bool   // its ADD
	link     bool   // the container has the interface
	result   []byte // of the ADD, as JSON
	now      []byte // with the addresses that SetAddresses has set; nil: the same
	noted    []byte // as Refresh has noted it; nil: the same
	held     []reserved
	broken   []cni.Difference

	failures  int
	lastTry   time.Time
	lastError string
}

// plugins returns the types of the network's plugins.
func (a *fakeAttachment) plugins() []string {
	var types []string
	for _, p := range a.config() {
		types = append(types, p.Type)
	}
	return types
}

func (a *fakeAttachment) config() []fakePlugin {
	var list struct {
		Plugins []fakePlugin `json:"plugins"`
	}
	if err := json.Unmarshal(a.Config, &list); err != nil || len(list.Plugins) == 0 {
		return []fakePlugin{{}} // fields of other types: the plugins would refuse them
	}
	return list.Plugins
}

// Setup implements cni.CNI.
func (f *Fake) Setup(ctx context.Context, id, path string, opts ...cni.NamespaceOpts) (*cni.Result, error) {
	return f.setup(ctx, "Setup", id, path, opts, false)
}

// SetupSerially implements cni.CNI.
func (f *Fake) SetupSerially(ctx context.Context, id, path string, opts ...cni.NamespaceOpts) (*cni.Result, error) {
	return f.setup(ctx, "SetupSerially", id, path, opts, true)
}

func (f *Fake) setup(ctx context.Context, method, id, path string, opts []cni.NamespaceOpts, serially bool) (_ *cni.Result, err error) {
	call := FakeCall{Method: method, ContainerID: id, NetNS: path}
	defer func() { f.record(call, &err) }()
	plan, err := f.conf.Plan(id, path, opts...)
	if err != nil {
		return nil, err
	}
	call.Plan = plan
	s := &fakeSetup{f: f, plan: plan, makes: plan.NewNetNS}
	if err := s.begin(ctx); err != nil {
		return nil, fmt.Errorf("set up container %q: %w", id, err)
	}
	return s.finish(ctx, serially)
}

// fakeSetup is a Setup in progress.
type fakeSetup struct {
	f      *Fake
	plan   *cni.Plan
	mine   []*fakeAttachment // on record
	makes  bool              // the namespace
	pooled bool              // for a pool, which makes the namespace
	from   *fakeContainer    // a pool has made it ahead of time
	pool   *FakePool         // that makes the container ahead of time, or nil
	ours   bool              // Remove deletes the namespace
	unlock func()
}

// begin validates, removes dead attachments, and puts the new ones on record. The
// container stays locked until finish, unless there is an error. Then nothing is on
// record.
func (s *fakeSetup) begin(ctx context.Context) (err error) {
	h := s.f.h
	s.ours = s.makes || s.pooled
	if !s.ours {
		if err := h.validPath(s.plan.NetNS); err != nil {
			return err
		}
	}
	if s.unlock, err = h.lock(ctx, s.plan.ContainerID); err != nil {
		return err
	}
	if err = s.place(); err == nil {
		err = s.clearDead(ctx)
	}
	if err == nil {
		err = s.enter()
	}
	if err != nil {
		s.unlock()
	}
	return err
}

// finish runs the ADDs, and undoes them if one fails.
func (s *fakeSetup) finish(ctx context.Context, serially bool) (*cni.Result, error) {
	defer s.unlock()
	id := s.plan.ContainerID
	if err := s.f.add(ctx, id, s.mine, serially); err != nil {
		return nil, s.f.rollBack(ctx, id, s.mine, err)
	}
	s.f.h.mu.Lock()
	defer s.f.h.mu.Unlock()
	return s.f.resultOf(s.plan, s.mine)
}

// place sets the path of the namespace that the Setup makes.
func (s *fakeSetup) place() error {
	h := s.f.h
	h.mu.Lock()
	defer h.mu.Unlock()
	at, c := *s.plan, h.containers[s.plan.ContainerID]
	switch {
	case s.from != nil:
		at.NetNS = s.from.netns
	case s.pooled:
		at.NetNS = h.newPath("cold")
	case !s.makes:
	case at.NetNS == "" && c != nil && !c.dead:
		at.NetNS = c.netns
	case at.NetNS == "":
		at.NetNS = h.newPath(at.ContainerID)
	case h.exists[at.NetNS] != 0 && (c == nil || c.netns != at.NetNS):
		return fmt.Errorf("make network namespace %s: %w: %w", at.NetNS, fs.ErrExist, cni.ErrInvalidNetNS)
	}
	s.plan = &at
	return nil
}

// validPath reports why no container can be attached at a path.
func (h *fakeHost) validPath(path string) error {
	if path == "" {
		return fmt.Errorf("no path given: %w", cni.ErrInvalidNetNS)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gone[path] {
		return fmt.Errorf("%s is gone: %w", path, cni.ErrInvalidNetNS)
	}
	return nil
}

// clearDead removes the leftovers of an earlier attachment, and refuses interfaces that
// are attached.
func (s *fakeSetup) clearDead(ctx context.Context) error {
	dead, err := s.deadOnes()
	if err != nil || len(dead) == 0 {
		return err
	}
	if err := s.f.tearDown(ctx, s.plan.ContainerID, dead); err != nil {
		return fmt.Errorf("remove an earlier attachment: %w", err)
	}
	return nil
}

// deadOnes returns the attachments that clearDead removes.
func (s *fakeSetup) deadOnes() (dead []*fakeAttachment, err error) {
	h, plan := s.f.h, s.plan
	h.mu.Lock()
	defer h.mu.Unlock()
	if r := h.released[plan.ContainerID]; r != nil {
		if a := r.find(func(a *fakeAttachment) bool { return s.wants(a.IfName) }); a != nil && !r.dead {
			return nil, alreadyAttached(r, a)
		}
		if r.dead {
			h.recall(r.id, nil)
		}
	}
	c := h.containers[plan.ContainerID]
	if c == nil {
		return nil, nil
	}
	for _, a := range c.attachments {
		live := !c.dead && a.link
		halfMade := s.makes && c.made && a.owner == plan.Owner && isUnfinished(c.attachments, a)
		switch {
		case !live && (s.wants(a.IfName) || c.dead || a.owner == plan.Owner) || halfMade:
			dead = append(dead, a)
		case s.wants(a.IfName) || s.makes:
			return nil, alreadyAttached(c, a)
		case c.netns != plan.NetNS:
			return nil, fmt.Errorf("%s is another namespace than %s, in which the container is attached: %w", plan.NetNS, c.netns, cni.ErrInvalidNetNS)
		}
	}
	if len(dead) < len(c.attachments) { // this call adds to the others, which are alive
		dead = slices.DeleteFunc(dead, func(a *fakeAttachment) bool { return !s.wants(a.IfName) })
	}
	s.keepNetNS(c)
	return dead, nil
}

// keepNetNS has the removal of a container's attachments leave the namespace that was
// made for it, if the container is attached in it again. The host is locked.
func (s *fakeSetup) keepNetNS(c *fakeContainer) {
	if c.made && !c.dead && c.netns == s.plan.NetNS {
		c.kept, s.ours = true, true
	}
}

func (s *fakeSetup) wants(ifName string) bool {
	return slices.ContainsFunc(s.plan.Attachments, func(a cni.PlannedAttachment) bool { return a.IfName == ifName })
}

func alreadyAttached(c *fakeContainer, a *fakeAttachment) error {
	return fmt.Errorf("interface %s of network %q in %s: %w; call Remove first", a.IfName, a.Network, c.netns, cni.ErrAlreadyAttached)
}

// enter chooses ports and puts the attachments on record, unless another container has
// one of their ports, or an interface of their names in the namespace.
func (s *fakeSetup) enter() error {
	h := s.f.h
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.refuseTaken(s.plan, s.from); err != nil {
		return err
	}
	plan, err := h.choosePorts(s.plan)
	if err == nil {
		err = h.refusePorts(plan)
	}
	if err != nil {
		return err
	}
	s.plan = plan
	c := h.containers[plan.ContainerID]
	if c == nil {
		c = &fakeContainer{id: plan.ContainerID, netns: plan.NetNS, pooled: s.pooled, pool: s.pool, since: time.Now()}
		h.containers[c.id] = c
		h.makeNetNS(c.netns)
	}
	c.made, c.kept = c.made || s.ours, false
	c.calls++
	c.changes++
	for _, p := range plan.Attachments {
		a := &fakeAttachment{PlannedAttachment: p, owner: plan.Owner, call: c.calls}
		a.to, a.warm = len(a.plugins()), s.pool != nil
		if a.warm {
			a.to = ahead(p)
		}
		s.takeOver(a)
		s.mine = append(s.mine, a)
	}
	c.attachments = append(c.attachments, s.mine...)
	if s.from != nil {
		delete(h.containers, s.from.id)
	}
	return nil
}

// takeOver gives an attachment the interface and the addresses that a pool has made for
// its network.
func (s *fakeSetup) takeOver(a *fakeAttachment) {
	if s.from == nil {
		return
	}
	if w := s.from.on(a.Network, a.IfName); w != nil {
		a.from, a.begun, a.link, a.result, a.held = w.to, true, w.link, w.result, w.held
	}
}

// refuseTaken refuses interfaces that another container has in the same namespace, unless
// that is the one that a pool has made for this.
func (h *fakeHost) refuseTaken(plan *cni.Plan, from *fakeContainer) error {
	for c, a := range h.attached() {
		if c.id == plan.ContainerID || c == from || c.dead || c.netns != plan.NetNS || !a.link {
			continue
		}
		for _, wanted := range plan.Attachments {
			if wanted.IfName == a.IfName && a.plugins()[0] != known.Loopback {
				return fmt.Errorf("interface %s of network %q: there is one in %s that is not of this container's record: %w",
					wanted.IfName, wanted.Network, plan.NetNS, cni.ErrAlreadyAttached)
			}
		}
	}
	return nil
}

// join returns a single error as it is.
func join(errs []error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

// add runs the ADDs. Only serially it stops at the first that fails.
func (f *Fake) add(ctx context.Context, id string, mine []*fakeAttachment, serially bool) error {
	var errs []error
	for _, a := range mine {
		if ctx.Err() != nil {
			errs = append(errs, a.error("ADD", id, "", context.Cause(ctx)))
			continue
		}
		f.h.mu.Lock()
		a.begun = true
		f.h.mu.Unlock()
		err := f.h.fault(ctx, "ADD", id, a)
		f.h.mu.Lock()
		if a.from == 0 && !a.failedFirst(err) {
			// The plugins before the one that fails have done their work, or failed.
			if failed := f.h.attach(id, a); failed != nil {
				err = failed
			}
		}
		if err == nil {
			a.progress = fakeAdded
		}
		f.h.mu.Unlock()
		if errs = append(errs, err); err != nil && serially {
			break
		}
	}
	return join(errs)
}

// failedFirst reports whether an error is of the network's first plugin.
func (a *fakeAttachment) failedFirst(err error) bool {
	var e *cni.Error
	return errors.As(err, &e) && e.Plugin == a.plugins()[0]
}

// rollBack detaches the attachments that were begun, and forgets the rest. It returns the error of Setup.
func (f *Fake) rollBack(ctx context.Context, id string, mine []*fakeAttachment, why error) error {
	var begun, never []*fakeAttachment
	f.h.mu.Lock()
	for _, a := range mine {
		if a.begun {
			begun = append(begun, a)
		} else {
			never = append(never, a)
		}
	}
	f.h.forget(id, never)
	f.h.mu.Unlock()
	if len(begun) == 0 {
		return why
	}
	if err := f.tearDown(ctx, id, begun); err != nil {
		return errors.Join(why, fmt.Errorf("roll back: %w", err))
	}
	return why
}
