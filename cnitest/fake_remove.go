package cnitest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/version"

	"github.com/embedcni/cni"
)

// Remove implements cni.CNI.
func (f *Fake) Remove(ctx context.Context, id, path string, opts ...cni.NamespaceOpts) (err error) {
	defer f.record(FakeCall{Method: "Remove", ContainerID: id, NetNS: path}, &err)
	named := func(err error) error { return fmt.Errorf("remove container %q: %w", id, err) }
	selected, err := f.selected(id, opts)
	if err != nil {
		return named(err)
	}
	unlock, err := f.h.lock(context.WithoutCancel(ctx), id)
	if err != nil {
		return named(err)
	}
	defer unlock()
	f.h.mu.Lock()
	f.h.recall(id, selected)
	f.h.mu.Unlock()
	going, _ := f.h.recorded(id, selected)
	return f.tearDown(ctx, id, going)
}

// notGiven is the prefix of interface names that no option has given.
const notGiven = "cnitestfake"

// selected returns a test for the attachments of a container that options select. It
// plans the call with the networks on record and those that are loaded.
func (f *Fake) selected(id string, opts []cni.NamespaceOpts) (func(*fakeAttachment) bool, error) {
	setup := []cni.Opt{cni.WithMinNetworkCount(0), cni.WithInterfacePrefix(notGiven)}
	var known []string
	add := func(name, source string) {
		if !slices.Contains(known, name) {
			known = append(known, name)
			setup = append(setup, cni.WithConfListBytes([]byte(source)))
		}
	}
	f.h.mu.Lock()
	for c, a := range f.h.attached() {
		if c.id == id {
			add(a.Network, string(a.Config))
		}
	}
	f.h.mu.Unlock()
	for _, n := range f.conf.GetConfig().Networks {
		add(n.Config.Name, n.Config.Source)
	}
	rt, err := cni.New(setup...)
	if err != nil {
		return nil, err
	}
	plan, err := rt.Plan(id, "", opts...)
	if err != nil {
		return nil, unnamed(err)
	}
	return func(a *fakeAttachment) bool {
		return slices.ContainsFunc(plan.Attachments, func(p cni.PlannedAttachment) bool {
			return p.Network == a.Network && (p.IfName == a.IfName || strings.HasPrefix(p.IfName, notGiven))
		})
	}, nil
}

// unnamed removes the words of Plan from an error.
func unnamed(err error) error {
	if inner := errors.Unwrap(err); inner != nil && strings.HasPrefix(err.Error(), "set up container ") {
		return inner
	}
	return err
}

// tearDown runs the DELs, last first. If one fails, all attachments stay on record. The
// container is locked.
func (f *Fake) tearDown(ctx context.Context, id string, going []*fakeAttachment) error {
	if len(going) == 0 {
		return nil
	}
	f.h.mu.Lock()
	f.h.containers[id].changes++
	for _, a := range going {
		a.progress = fakeDeleting
	}
	f.h.mu.Unlock()
	var errs []error
	failed := map[*fakeAttachment]error{}
	for _, a := range slices.Backward(going) {
		err := f.h.fault(ctx, "DEL", id, a)
		f.h.mu.Lock()
		a.link = false // the other plugins of the network
		f.h.ipam.release(a.Network, a.held)
		a.held, a.broken = nil, nil
		f.h.mu.Unlock()
		if err != nil {
			failed[a] = err
			errs = append(errs, err)
		}
	}
	f.h.mu.Lock()
	defer f.h.mu.Unlock()
	if len(errs) == 0 {
		f.h.forget(id, going)
		return nil
	}
	for a, err := range failed {
		a.failures++
		a.lastTry, a.lastError = time.Now(), err.Error()
	}
	return &cni.LeftoverError{ContainerID: id, Err: join(errs)}
}

// state is the state of an attachment on record.
func (a *fakeAttachment) state() cni.AttachmentState {
	switch {
	case a.failures > 0:
		return cni.Failed
	case a.warm:
		return cni.Ready
	case a.progress == fakeDeleting:
		return cni.Detaching
	case a.progress == fakeAdded:
		return cni.Attached
	}
	return cni.Attaching
}

// Check implements cni.CNI.
func (f *Fake) Check(ctx context.Context, id, path string, opts ...cni.NamespaceOpts) (err error) {
	defer f.record(FakeCall{Method: "Check", ContainerID: id, NetNS: path}, &err)
	named := func(err error) error { return fmt.Errorf("check container %q: %w", id, err) }
	plan, err := f.conf.Plan(id, path, opts...)
	if errors.Is(err, cni.ErrCNINotInitialized) {
		return err
	}
	if err != nil {
		return named(unnamed(err))
	}
	if err := f.h.validPath(path); err != nil {
		f.h.mu.Lock()
		defer f.h.mu.Unlock()
		if f.h.containers[id] == nil && f.h.released[id] == nil {
			err = fmt.Errorf("%w; and it is %w", err, cni.ErrNotAttached)
		}
		return named(err)
	}
	unlock, err := f.h.lock(ctx, id)
	if err != nil {
		return named(err)
	}
	defer unlock()
	for _, planned := range plan.Attachments {
		if err := f.check(ctx, id, planned); err != nil {
			return err
		}
	}
	return nil
}

func (f *Fake) check(ctx context.Context, id string, planned cni.PlannedAttachment) error {
	f.h.mu.Lock()
	a := cmp.Or(f.h.containers[id].on(planned.Network, planned.IfName), f.h.released[id].on(planned.Network, planned.IfName))
	if a != nil && a.progress == fakePlanned {
		a = nil
	}
	var broken []cni.Difference
	if a != nil {
		broken = a.broken
	}
	f.h.mu.Unlock()
	if a == nil {
		missing := &fakeAttachment{PlannedAttachment: planned}
		return missing.error("CHECK", id, "", fmt.Errorf("%s of network %q: %w", planned.IfName, planned.Network, cni.ErrNotAttached))
	}
	if len(broken) > 0 {
		return a.error("CHECK", id, broken[0].Plugin, broken[0].Err)
	}
	return f.h.fault(ctx, "CHECK", id, a)
}

// Status implements cni.CNI.
func (f *Fake) Status() error { return f.StatusContext(context.Background()) }

// StatusContext is Runtime.StatusContext of package cni.
func (f *Fake) StatusContext(ctx context.Context) (err error) {
	defer f.record(FakeCall{Method: "Status"}, &err)
	return join(f.notReady(ctx)[:1])
}

// Ready is Runtime.Ready of package cni.
func (f *Fake) Ready(ctx context.Context) (err error) {
	defer f.record(FakeCall{Method: "Ready"}, &err)
	reasons := slices.DeleteFunc(f.notReady(ctx), func(err error) bool { return err == nil })
	if len(reasons) == 0 {
		return nil
	}
	return &cni.NotReadyError{Reasons: reasons}
}

// notReady returns the reasons why no container can be attached; at least one, which may
// be nil.
func (f *Fake) notReady(ctx context.Context) (reasons []error) {
	plan, err := f.conf.Plan("any", "")
	if err != nil {
		return []error{unnamed(err)}
	}
	return f.refusals(ctx, plan)
}

// StatusOf is Runtime.StatusOf of package cni.
func (f *Fake) StatusOf(ctx context.Context, configs ...[]byte) (err error) {
	defer f.record(FakeCall{Method: "StatusOf"}, &err)
	plan, err := f.planOf(configs)
	if err != nil {
		return fmt.Errorf("status: %w", err)
	}
	return f.refusals(ctx, plan)[0]
}

// planOf returns the plan of a Setup on networks of these configurations.
func (f *Fake) planOf(configs [][]byte) (*cni.Plan, error) {
	opts := []cni.Opt{cni.WithMinNetworkCount(0)}
	for _, config := range configs {
		opts = append(opts, cni.WithConfiguration(config))
	}
	rt, err := cni.New(opts...)
	if err != nil {
		return nil, err
	}
	plan, err := rt.Plan("any", "")
	if err != nil {
		return nil, unnamed(err)
	}
	return plan, nil
}

// refusals returns the errors of the networks' STATUS, and nil as the last.
func (f *Fake) refusals(ctx context.Context, plan *cni.Plan) (reasons []error) {
	for _, p := range plan.Attachments {
		var list struct {
			Version string `json:"cniVersion"`
		}
		if err := decode(p.Config, &list); err != nil {
			return []error{err}
		}
		if ok, err := version.GreaterThanOrEqualTo(cmp.Or(list.Version, "0.1.0"), "1.1.0"); err != nil || !ok {
			continue // it has no STATUS
		}
		p.IfName = ""
		if err := f.h.fault(ctx, "STATUS", "", &fakeAttachment{PlannedAttachment: p}); err != nil {
			reasons = append(reasons, err)
		}
	}
	return append(reasons, nil)
}
