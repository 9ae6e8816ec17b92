package engine

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/engine/container"
	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/run/runner"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/internal/store/ports"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/outcome"
)

// setup is a Setup of one container in progress. The attachments of its
// operation are those to make.
type setup struct {
	op       *operation
	serially bool
	ignored  []string             // see SetupResult.Ignored
	warnings []*outcome.PortError // about ports of the host that are forwarded nevertheless
}

// Setup attaches the container. Containers that are gone and have its ports are removed
// first.
func (eng *Engine) Setup(ctx context.Context, c *Call, serially bool) (*SetupResult, error) {
	replaces, _ := ctx.Value(replacing{}).(*replacement)
	ctx = context.WithValue(ctx, replacing{}, nil) // a plugin may attach another container with it
	c.Makes = c.Makes && replaces == nil
	return reaper{eng}.withoutHolders(ctx, func() (*SetupResult, error) {
		op, err := eng.begin(c, "ADD")
		s := &setup{op: op, serially: serially, ignored: c.Ignored}
		if err == nil {
			defer op.end()
			op.c.Recorded.PrepareRecord()
			if replaces == nil { // or a container that is to be replaced would be removed first
				reaper{eng}.request(op.c.Place.Host, true)
			}
			err = s.makeRoom(ctx, replaces)
		}
		if err != nil {
			return nil, joined.Errorf("set up container %q: %w", c.ID, err)
		}
		return s.tryAll(ctx)
	})
}

// makeRoom locks the container to attach it, and removes those of its earlier attachments
// that are in the way: the dead ones, or those that are to be replaced.
func (s *setup) makeRoom(ctx context.Context, replaces *replacement) error {
	if err := s.op.lock(ctx, container.Access{}); err != nil {
		return err
	}
	if err := s.op.c.Follow(); err != nil {
		return err
	}
	if err := s.clear(ctx, replaces); err != nil {
		return err
	}
	for _, a := range s.op.attachments {
		a.plan.ContainerID = string(s.op.c.Recorded.PluginID())
	}
	return s.refuseTaken(&s.op.c.Place, nil)
}

// clear removes earlier attachments. Meanwhile the container is where its record says.
func (s *setup) clear(ctx context.Context, replaces *replacement) error {
	wanted := s.op.c.Depart()
	defer func() {
		s.op.c.Return(wanted)
		s.op.endRemoval()
	}()
	earlier, err := s.recallAttached(ctx, wanted)
	switch {
	case err != nil:
		return err
	case replaces != nil:
		return replaces.clear(ctx, s, wanted, earlier)
	}
	return s.clearDead(ctx, wanted, earlier)
}

// tryAll is try with the attempts of WithRetry.
func (s *setup) tryAll(ctx context.Context) (*SetupResult, error) {
	for attempt := 1; ; attempt++ {
		result, err := s.try(ctx)
		if err == nil || attempt >= s.op.eng.opts.Retry.Attempts || !isTransient(err) {
			return result, err
		}
		s.op.log().Info("trying again", "attempt", attempt+1, "error", err)
		if werr := waitFor(ctx, s.op.eng.opts.Retry.pause(attempt+1)); werr != nil {
			return nil, err
		}
	}
}

// clearDead refuses to attach interfaces that are attached. It first removes the
// leftovers of an attachment that has died: its namespace is gone or replaced,
// or the interface in it is gone, as after a reboot or a crash.
func (s *setup) clearDead(ctx context.Context, wanted container.Place, earlier attachments) error {
	if len(earlier) == 0 && s.op.c.Recorded.Record == nil {
		return nil
	}
	dead, err := s.deadOf(earlier, wanted)
	if err != nil || len(dead) == 0 && len(earlier) > 0 {
		return err
	}
	if kept, err := s.op.c.KeepNetNS(wanted); err != nil || kept && len(earlier) == 0 {
		return err
	}
	for _, a := range dead {
		if a.progress.partial == nil { // the sweep needs it, and a successful DEL deletes it from the cache
			a.progress.partial = a.cached().Result()
		}
	}
	s.op.log().Info("removing an earlier attachment")
	if err := s.op.tearDown(context.WithoutCancel(ctx), dead); err != nil {
		return fmt.Errorf("remove an earlier attachment: %w", err)
	}
	return nil
}

// deadOf returns the earlier attachments to remove: all if all are dead, or else
// the dead ones under interface names that this call wants. It refuses interface
// names of live attachments, and another namespace than theirs.
func (s *setup) deadOf(earlier attachments, wanted container.Place) (attachments, error) {
	wants := s.op.attachments.names()
	var dead attachments
	for _, a := range earlier {
		live, err := a.isAlive(earlier)
		if err != nil {
			return nil, fmt.Errorf("look up interface %s of network %q: %w", a.plan.IfName, a.plan.Network.Config.Name, err)
		}
		if s.isTornLo(earlier) {
			a.plan.NetNS = "" // the path is this Setup's, where lo may be another's
			live = false
		}
		if !live && (wants[a.plan.IfName] || !s.leaves(a)) || s.isHalfMade(a) {
			dead = append(dead, a)
			continue
		}
		// Adding to a damaged record would lose its illegible part.
		if wants[a.plan.IfName] || s.op.c.Recorded.Damaged || s.op.c.MakesNetNS() {
			return nil, fmt.Errorf("interface %s of network %q in %s: %w; call Remove first",
				a.plan.IfName, a.plan.Network.Config.Name, a.plan.NetNS, outcome.ErrAlreadyAttached)
		}
		if err := s.op.c.Recorded.SameNetNS(wanted.Path); err != nil {
			return nil, err
		}
	}
	if len(dead) < len(earlier) { // this call adds to the others, which are alive
		dead = slices.DeleteFunc(dead, func(a *attachment) bool { return !wants[a.plan.IfName] })
	}
	return dead, nil
}

// isHalfMade reports whether an attachment is of a Setup that was to make the namespace
// and did not end, or of a Remove that did not. Nobody relies on either, and their
// runtime is dead, because this call has the container locked.
func (s *setup) isHalfMade(a *attachment) bool {
	return s.op.c.MakesNetNS() && s.op.c.Recorded.Record != nil && !s.op.c.Recorded.Damaged && s.op.c.Recorded.Record.NetNS.Ours && a.own() && s.op.c.Recorded.Record.IsUnfinished(a.entry())
}

// recallAttached finds the container's attachments in its record or, without
// one, in libcni's cache.
func (s *setup) recallAttached(ctx context.Context, wanted container.Place) (attachments, error) {
	damage, err := s.op.load()
	switch {
	case err != nil:
		return nil, err
	case damage != nil:
		// The loaded networks and the namespace to attach show whether it is
		// alive, and if not its leftovers.
		s.op.log().Warn("attachment record cannot be read", "error", damage)
		return cache{s.op}.attachments(&Call{ID: s.op.c.Recorded.ID, Path: wanted.Path, Planned: plain(s.op.eng, s.op.c.Recorded.ID)}, false)
	case s.op.c.Recorded.Record != nil:
		all, err := s.op.enterRecorded(false)
		if err == nil && s.op.c.Place.Reached == container.Elsewhere && !s.op.c.Place.IsAbandoned() {
			err = s.op.c.Place.AwaitEnd(ctx, time.Now().Add(container.EndsWithin))
		}
		return all, err
	}
	all, err := cache{s.op}.existing(wanted)
	for _, a := range all {
		cache{s.op}.avoid(a)
	}
	return all, err
}

// leaves reports whether an attachment stays although its interface is gone:
// another owner made it, in a live namespace, and may know why.
func (s *setup) leaves(a *attachment) bool {
	return s.op.c.Recorded.Record != nil && !s.op.c.Recorded.Damaged && a.plan.NetNS != "" && !s.op.c.Place.IsAbandoned() && !a.own()
}

// refuseTaken refuses to make an interface that exists but is not on this
// container's record, for example because the path leads to another container's
// namespace by now. The ADD could only fail, and the DEL that undoes it would
// delete the other interface. Those in going are about to be removed.
func (s *setup) refuseTaken(at *container.Place, going map[string]bool) error {
	for _, a := range s.op.attachments {
		if !a.plan.Network.makesInterface() || going[a.plan.IfName] {
			continue
		}
		taken, err := at.HasLink(a.plan.IfName)
		if err != nil {
			return fmt.Errorf("look up interface %s in %s: %w", a.plan.IfName, at.Path, err)
		}
		if taken {
			return fmt.Errorf("interface %s of network %q: %s has an %s already, %s: %w",
				a.plan.IfName, a.plan.Network.Config.Name, at.Path, a.plan.IfName, s.ownerOf(at, a.plan.IfName), outcome.ErrAlreadyAttached)
		}
	}
	return nil
}

// ownerOf says which container on record has an interface of a namespace.
func (s *setup) ownerOf(at *container.Place, ifName string) string {
	found, err := s.op.eng.Store.Records.List()
	if err != nil {
		return fmt.Sprintf("and whose it is is not known: %v", err)
	}
	boot, err := s.op.eng.Store.BootID()
	if err != nil {
		return fmt.Sprintf("and whose it is is not known: %v", err)
	}
	for _, f := range found {
		if f.Record.Boot != boot || f.Record.NetNS.ID() != at.NetNS.ID() {
			continue
		}
		if n := f.Record.Find(ifName); n != nil {
			return fmt.Sprintf("that of container %s on network %q", f.Record.ContainerID, n.Network)
		}
	}
	return "which is in no container's record"
}

// try records the attachments, and makes them. The error is only of plugins if nothing
// remains.
func (s *setup) try(ctx context.Context) (*SetupResult, error) {
	s.op.endRemoval() // of an earlier attempt
	for _, a := range s.op.attachments {
		a.progress = progress{}
		a.facts.Reset(nil)
		a.plugins.Reset(nil, nil)
	}
	err := s.op.c.RemakeNetNS()
	if err == nil {
		err = s.write(ctx)
	}
	if err != nil {
		return nil, joined.Errorf("set up container %q: %w", s.op.c.Recorded.ID, err)
	}
	attached, err := s.attach(ctx)
	if err == nil {
		err = Validate(attached)
	}
	if err == nil {
		return &SetupResult{
			Attached: attached, Earlier: earlier(s.op), NetNS: MadeNetNS(s.op.c.Recorded.Record),
			PortWarnings: s.warnings, Requested: s.op.attachments.requested(), Ignored: s.ignored,
		}, nil
	}
	if rerr := s.rollBack(ctx); rerr != nil {
		return nil, &rollbackError{err, rerr}
	}
	return nil, err
}

// attach runs the ADDs, each network in a goroutine of its own unless serially.
// It stops a group at its first error, and returns the errors of all groups.
func (s *setup) attach(ctx context.Context) ([]Source, error) {
	results := make([]Source, len(s.op.attachments))
	errs := make([]error, len(s.op.attachments))
	run := func(group []int) {
		for _, i := range group {
			a := s.op.attachments[i]
			results[i] = Source{Network: a.plan.Network.Config.Name, IfName: a.plan.IfName, Ports: a.plan.Mappings()}
			results[i].Result, errs[i] = s.add(ctx, i)
			if errs[i] != nil {
				return
			}
		}
	}
	groups := s.op.attachments.groups(s.serially)
	if len(groups) == 1 { // another goroutine would need another thread if the caller has locked its own
		run(groups[0])
		return results, Join(errs...)
	}
	var wg sync.WaitGroup
	for _, group := range groups {
		wg.Go(func() { run(group) })
	}
	wg.Wait()
	return results, Join(errs...)
}

// groups returns the positions of attachments that must run one after the other:
// all of them if serially; else those of one network, whose plugins would interfere
// with each other, and those that ask for one port of the host, which the first gets.
func (all attachments) groups(serially bool) (groups [][]int) {
	claims := make([][]ports.Claim, len(all))
	for i, a := range all {
		claims[i] = a.plan.hostPorts()
		together := []int{i}
		var apart [][]int
		for _, g := range groups {
			if serially || slices.ContainsFunc(g, func(j int) bool {
				return all[j].plan.Network.Config.Name == a.plan.Network.Config.Name || ports.Overlap(claims[j], claims[i])
			}) {
				together = append(together, g...)
			} else {
				apart = append(apart, g)
			}
		}
		slices.Sort(together)
		groups = append(apart, together)
	}
	return groups
}

// add runs the ADD of one network. The first ADD of a network on a host runs alone for
// a moment if its plugins may create rules that containers share.
func (s *setup) add(ctx context.Context, index int) (result *types100.Result, err error) {
	a := s.op.attachments[index]
	ctx, span := runner.AttachSpan(ctx, a.plan.Network.Config.Name, a.plan.IfName, index, s.serially)
	defer func() { runner.EndSpan(span, err) }()
	if ctx.Err() != nil {
		return nil, a.error("ADD", context.Cause(ctx))
	}
	end, err := a.runner().Begin(ctx, givenCapabilities(a))
	if err != nil {
		return nil, a.error("ADD", err)
	}
	a.progress.attempted = true
	defer func() { _ = end(false) }() // after a panic; otherwise it ends below
	result, a.progress.partial, err = a.chain().Add(ctx, &a.plan.Attachment, a.plan.Prev)
	if err == nil {
		a.progress.state = record.Added
		err = a.append(record.Entry{State: record.Added, Result: a.progress.held})
	}
	if err != nil {
		if nerr := a.runner().NoteNotRun(); nerr != nil {
			s.op.log().Warn("note in the record which plugins did not run", "error", nerr)
		}
	}
	if ferr := end(err == nil); ferr != nil {
		s.op.eng.opts.Logger.Warn("end the first attachment of a network", "network", a.plan.Network.Config.Name, "error", ferr)
	}
	return result, a.errors("ADD", err)
}

// givenCapabilities returns the names of the capabilities that the plugins are given.
func givenCapabilities(a *attachment) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(a.plan.CapabilityArgs)) {
		if conflist.Declares(a.plan.Network.Config, name) && !IsEmpty(a.plan.CapabilityArgs[name]) {
			names = append(names, name)
		}
	}
	return names
}

// rollBack detaches the attachments that were begun, and forgets the others. The
// specification requires a DEL after a failed ADD too, because a plugin may fail
// with half its work done.
func (s *setup) rollBack(ctx context.Context) error {
	var begun, never attachments
	for _, a := range s.op.attachments {
		if a.progress.attempted {
			begun = append(begun, a)
		} else {
			never = append(never, a)
		}
	}
	err := s.op.forget(never)
	if len(begun) > 0 {
		err = Join(err, s.op.tearDown(context.WithoutCancel(ctx), begun))
	}
	if err != nil {
		return &leftBehind{leftover(s.op.c.Recorded.ID, err)}
	}
	return nil
}
