package cni

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/embedcni/cni/internal/firewalld"
	"github.com/embedcni/cni/internal/footprint"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/runner"
	"github.com/embedcni/cni/internal/sweep"
	"github.com/embedcni/cni/netns"
)

// LeftoverError means that a container, or a part of it, could not be removed.
// It is the error of every removal after which the container's record stays: of
// Remove, of CleanUp, of a Setup that could not be undone, and in the Failed of
// Recover and GC. Remove tries again, and so do Recover and GC by themselves;
// CleanUp removes attachments that Remove cannot end.
type LeftoverError struct {
	ContainerID string
	Left        []string // a line for each thing found after the removal, for a person
	Err         error    // the cause; wraps *Errors of plugins
}

func (e *LeftoverError) Error() string {
	s := fmt.Sprintf("container %s could not be removed", e.ContainerID)
	if why := e.why(); why != "" {
		s += ": " + why
	}
	return s + "; fix the cause and call Remove again, or call CleanUp to abandon it"
}

// why returns the cause, and the remaining things.
func (e *LeftoverError) why() string {
	var s []string
	if e.Err != nil {
		s = append(s, cmp.Or(runner.Trim(e.Err.Error()), runner.NoMessage))
	}
	if len(e.Left) > 0 {
		s = append(s, "left are "+strings.Join(e.Left, "; "))
	}
	return strings.Join(s, ": ")
}

// leftover turns an error that keeps a container on record into a
// *LeftoverError, unless it contains one.
func leftover(id record.ID, err error) error {
	if err == nil || errors.As(err, new(*LeftoverError)) {
		return err
	}
	return &LeftoverError{ContainerID: string(id), Err: err}
}

// Unwrap returns the cause.
func (e *LeftoverError) Unwrap() error { return e.Err }

// sweep removes the attachments' leftovers that the reference plugins leave when
// a DEL fails or is killed, and looks again. It returns neither lines nor an
// error only after verifying that nothing remains.
func (op *operation) sweep(ctx context.Context, attachments []*attachment) (left []string, err error) {
	var errs []error
	for _, a := range attachments {
		l, err := a.sweep(ctx)
		left = append(left, l...)
		errs = append(errs, err)
	}
	if len(errs) > 0 && join(errs...) == nil && len(left) == 0 {
		errs = append(errs, attachments[0].inherit(ctx))
	}
	return left, join(errs...)
}

// namesOf returns the names of the attachments' interfaces.
func namesOf(attachments []*attachment) map[string]bool {
	names := make(map[string]bool, len(attachments))
	for _, a := range attachments {
		names[a.IfName] = true
	}
	return names
}

// sweepTime bounds the sweep of one attachment. Legacy iptables waits for its
// lock without a limit, and another program may hold the lock.
const sweepTime = time.Minute

func (a *attachment) sweep(ctx context.Context) (left []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, sweepTime)
	defer cancel()
	t, done := a.target()
	defer done()
	found, err := sweep.Find(ctx, t)
	if err != nil {
		return nil, err
	}
	return a.clear(ctx, t, found)
}

// clear removes the items that were found, and looks again. UDP flows are no
// leftovers: new ones may come at any time, and a kernel without conntrack has
// none, so a failure is only logged.
func (a *attachment) clear(ctx context.Context, t sweep.Target, found []sweep.Item) (left []string, err error) {
	if len(found) > 0 {
		a.op.logger.Info("removing leftovers of DEL", "container", a.op.ID, "network", a.network.config.Name,
			"left", sweep.Lines(found))
		if still, err := sweep.Clear(ctx, t, found); err != nil || len(still) > 0 {
			return sweep.Lines(still), err
		}
	}
	if _, err := sweep.FlushFlows(t); err != nil {
		a.op.logger.Warn("flush UDP flows", "container", a.op.ID, "error", err)
	}
	return nil, nil
}

// described returns the attachment as package footprint takes it.
func (a *attachment) described() *footprint.Attachment {
	return &footprint.Attachment{
		Attachment: a.Attachment, List: a.network.config,
		Result: json.RawMessage(a.partial), Device: a.Fact(footprint.DeviceFact),
		Ran: a.plugins.Recorded(), IsRegistered: a.op.runner.IsRegistered,
		Recorded: a.op.Record != nil && !a.op.Damaged && a.op.Record.Find(a.IfName) != nil,
		Rebooted: a.op.Rebooted, HostGone: a.op.HostGone,
	}
}

// target returns the attachment as a target of the sweep. The caller must call
// done.
func (a *attachment) target() (t sweep.Target, done func()) {
	d := a.described()
	given := a.given()
	t = sweep.Target{
		Footprint: footprint.Of(d), Container: a.inside(), Others: a.op.others(a.IfName),
		Firewalld: a.op.bus, Filters: given.Filters, Conns: given.Conns,
	}
	if !a.op.HostGone {
		t.Host = a.op.Host.Handle
	}
	// host-local does not sync its files: a power cut leaves empty ones.
	t.How.Thorough = a.state != record.Added || a.op.Rebooted || a.op.HostGone || t.Rules.AnyPort
	t.How.FilesOnly = a.op.HostGone
	t.How.Emptied = a.emptied(t.Addresses)
	// After a DEL has begun, the interface may be back on the host, and another
	// container may have it.
	t.How.Lost = t.Interface.Device != nil && a.lost && !a.inDoubt()
	var err error
	if t.Before, err = firewalld.Recall(a); err != nil {
		// An attachment's own notes are not damaged if its record is not.
		a.op.logger.Warn("the addresses that were in firewalld's zones before cannot be read", "container", a.op.ID, "error", err)
	}
	if t.Siblings = a.Siblings(); len(t.Siblings.Owners) > 0 {
		t.Own, _ = d.SharedRules() // the sweep finds unknown rules by the addresses
	}
	if t.Container == nil && a.NetNS != "" && t.Host != nil {
		// A namespace that is gone is no reason to stop: its interfaces are gone too.
		if t.Container, _ = netns.Open(a.NetNS); t.Container != nil {
			return t, func() { _ = t.Container.Close() } // was only looked into
		}
	}
	return t, func() {}
}

// others returns the other attachments of the host, for an attachment of the
// container.
func (op *operation) others(ifName string) *footprint.Others {
	return &footprint.Others{
		Records: op.Records, CacheDir: op.stateDir,
		ContainerID: op.ID, Plugins: op.PluginID(), IfName: ifName, Leaving: op.removal.leaving,
	}
}
