package cnitest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/handover"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/record"
)

// Release is Runtime.Release of package cni. go-cni has every plugin as an executable, and
// all rules are where it finds them. A container that was released is not on record and
// stays attached, until Remove.
func (f *Fake) Release(ctx context.Context, o cni.ReleaseOptions) (_ *cni.ReleaseReport, err error) {
	defer f.record(FakeCall{Method: "Release"}, &err)
	report := &cni.ReleaseReport{}
	loaded, err := f.conf.Plan("any", "")
	if err != nil {
		return report, fmt.Errorf("release: %w", unnamed(err))
	}
	for _, id := range f.h.ids() {
		if all, _ := f.h.mine(id, f.me()); len(all) == 0 {
			continue
		}
		if ctx.Err() != nil {
			return report, fmt.Errorf("release: %w", context.Cause(ctx))
		}
		switch gone, err := f.release(ctx, id, loaded, o.DryRun); {
		case err != nil:
			note(&report.Refused, id, err)
		case !gone:
			report.Released = append(report.Released, id)
		}
	}
	return report, nil
}

// release releases one container. gone means that it was removed meanwhile.
func (f *Fake) release(ctx context.Context, id string, loaded *cni.Plan, dry bool) (gone bool, err error) {
	unlock, err := f.h.lockBriefly(ctx, id)
	if errors.Is(err, cni.ErrBusy) {
		err = fmt.Errorf("%w; call Release again", err)
	}
	if err != nil {
		return false, err
	}
	defer unlock()
	f.h.mu.Lock()
	defer f.h.mu.Unlock()
	c := f.h.containers[id]
	if c == nil {
		return true, nil
	}
	if err := c.handedOver(f.me(), loaded); err != nil || dry {
		return false, err
	}
	f.h.unrecord(c)
	f.h.released[id] = c
	return false, nil
}

// handedOver returns nil if go-cni could remove the container.
func (c *fakeContainer) handedOver(owner string, loaded *cni.Plan) error {
	rec := c.asRecord()
	if err := handover.Record(rec, owner, rec.Boot, rec.Host); err != nil {
		return err
	}
	if c.dead {
		return fmt.Errorf("%s no longer leads to its namespace, so that go-cni would leave what depends on it; Remove the container: %w",
			c.netns, cni.ErrInvalidNetNS)
	}
	errs := []error{handover.SameOptions(rec.Attachments)}
	for i, a := range c.attachments {
		if err := a.handedOver(&rec.Attachments[i], loaded); err != nil {
			errs = append(errs, fmt.Errorf("network %q, interface %s: %w", a.Network, a.IfName, err))
		}
	}
	return join(errs)
}

func (a *fakeAttachment) handedOver(n *record.Attachment, loaded *cni.Plan) error {
	if err := handover.Whole(n); err != nil {
		return err
	}
	if !a.link {
		return fmt.Errorf("there is no such interface in the container, and plugins then leave its rules; Remove the container: %w", cni.ErrNotAttached)
	}
	for _, typ := range a.plugins() {
		if len(a.ConfigArgs) > 0 && !known.Of(typ).BareDEL {
			return fmt.Errorf("plugin %q was given args by WithConfigArgs, for which go-cni has no option; Remove the container", typ)
		}
	}
	i := slices.IndexFunc(loaded.Attachments, func(p cni.PlannedAttachment) bool { return p.Network == a.Network && p.IfName == a.IfName })
	switch {
	case i < 0:
		return fmt.Errorf("it is not loaded under that interface name, and go-cni removes what it has loaded; load it, or Remove the container: %w", cni.ErrNotFound)
	case !sameJSON(loaded.Attachments[i].Config, a.Config):
		return errors.New("it is loaded with another configuration than it was attached with; load that one, or Remove the container")
	}
	return nil
}

func sameJSON(a, b json.RawMessage) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}

// asRecord returns the record that a Runtime would have of the container.
func (c *fakeContainer) asRecord() *record.Record {
	rec := &record.Record{ContainerID: record.ID(c.id), Since: c.since}
	rec.NetNS.Path, rec.NetNS.Ours, rec.Warm = c.netns, c.made && !c.pooled, c.pool != nil
	if c.pooled {
		rec.PluginID = "warm"
	}
	for _, a := range c.attachments {
		n := record.Attachment{
			Network: a.Network, IfName: a.IfName, Owner: a.owner, Config: a.Config, Capabilities: a.Capabilities, ConfigArgs: a.ConfigArgs,
			Failures: a.failures, LastTry: a.lastTry, LastError: a.lastError,
		}
		for _, name := range slices.Sorted(maps.Keys(a.Args)) {
			n.Args = append(n.Args, [2]string{name, a.Args[name]})
		}
		switch a.progress {
		case fakeAdded:
			n.State = record.Added
		case fakeDeleting:
			n.State = record.Deleting
		}
		rec.Attachments = append(rec.Attachments, n)
	}
	return rec
}
