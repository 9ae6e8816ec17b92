package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/container"
	"github.com/embedcni/cni/internal/handover"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/lock"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/record"
)

// ReleaseOptions configures Release.
type ReleaseOptions struct {
	// DryRun reports what Release would release, and releases nothing.
	DryRun bool
}

// ReleaseReport lists the containers that Release has looked at, by ID.
type ReleaseReport struct {
	// Released are the containers that now belong to go-cni. Their records are
	// deleted, and their namespaces are no longer kept alive.
	Released []string
	// Refused are the containers that Release left unchanged, each with the reason.
	// The error has a line for each obstacle, with its remedy. ErrBusy,
	// ErrPluginNotFound, ErrNotFound (the network is not loaded), ErrInvalidNetNS,
	// ErrHostNetNS and *RecordError are among the causes. A record that names no
	// container is listed as "record" and the name of its file.
	Refused map[string]error
}

// Err joins the refusals, or is nil.
func (r *ReleaseReport) Err() error {
	var errs []error
	for id, err := range r.Refused {
		errs = append(errs, fmt.Errorf("container %s: %w", id, err))
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return join(errs...)
}

// Release hands containers back to go-cni, for a program that stops using this
// library. For each container that this owner has attached it deletes the record,
// and the pin that keeps the network namespace alive. It touches nothing else: no
// plugin runs, and traffic goes on. Without Release, go-cni could detach the
// container, but the pin would keep the namespace alive for ever. Afterwards the
// container is as if go-cni had attached it. As always, go-cni's Remove needs the
// options of the Setup.
//
// A container is refused if go-cni v1.1.14 could not remove it completely, given the
// loaded networks, libcni's cache and the installed executables. So load the networks
// that go-cni will load, with the same plugin directories, and call Release from the
// network namespace from which go-cni will be called. Release refuses containers
//
//   - whose network is not loaded under the same interface name with the same
//     configuration, or that were given options for one network alone;
//   - with a plugin that is not installed, was registered by WithPlugin, or needs a
//     program to delete rules that is missing;
//   - with rules in the table inet embedcni, where built-in plugins keep them
//     unless the configuration names a backend;
//   - whose recorded path no longer leads to the namespace, or that a pool of an earlier version made;
//   - whose result is not in libcni's cache, which go-cni expects in
//     /var/lib/cni/results;
//   - that are partly attached or removed, were attached before a reboot, or have
//     attachments of another owner;
//   - whose record is damaged, or was written by a newer version.
//
// Such a container stays as it was, and Remove removes it. Release may be repeated;
// the report does not list containers that were released before. Release does not
// wait for other calls: a locked container is refused with ErrBusy. Release stops when
// ctx ends. It returns an error if it cannot list the containers, or cannot make sure
// that no deleted record comes back after a power cut.
func (r *Runtime) Release(ctx context.Context, o ReleaseOptions) (*ReleaseReport, error) {
	s := r.current.Load()
	report := &ReleaseReport{}
	err := join(s.refuseInside(ctx), r.ready(s))
	if err == nil {
		err = s.release(ctx, o, report)
	}
	if err != nil {
		return report, fmt.Errorf("release: %w", err)
	}
	return report, nil
}

func (s *snapshot) release(ctx context.Context, o ReleaseOptions, report *ReleaseReport) (err error) {
	host, err := s.Hosts.Open("") // go-cni has no other
	if err != nil {
		return err
	}
	defer func() { err = join(err, host.Close()) }()
	if host.Handle == nil {
		return ErrNotSupported
	}
	found, err := s.Records.List()
	if err != nil {
		return err
	}
	for _, f := range record.WithoutTaken(found) {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
			break
		}
		if f.Concerns(s.owner) {
			report.add(s.releaseOne(ctx, host, f, o.DryRun))
		}
	}
	slices.Sort(report.Released)
	if len(report.Released) == 0 || o.DryRun {
		return err
	}
	return join(err, s.Records.SyncDeleted())
}

// released is the outcome for one container.
type released struct {
	id   string
	gone bool // removed since it was listed
	err  error
}

func (r *ReleaseReport) add(o released) {
	switch {
	case o.err != nil:
		if r.Refused == nil {
			r.Refused = make(map[string]error)
		}
		r.Refused[o.id] = o.err
	case !o.gone:
		r.Released = append(r.Released, o.id)
	}
}

func (s *snapshot) releaseOne(ctx context.Context, host *hostns.NetNS, f record.Found, dry bool) (o released) {
	o.id = nameOf(f)
	if o.err = untouchable(s.Records, f); o.err != nil {
		return o
	}
	if f.Err != nil {
		o.err = fmt.Errorf("its record is damaged; Remove it: %w", f.Err)
		return o
	}
	op, err := s.beginRelease(ctx, host, f.Record.ContainerID)
	if err != nil {
		o.err = err
		return o
	}
	defer op.end()
	switch damage, err := op.load(); {
	case err != nil || damage != nil:
		o.err = join(err, damage)
		return o
	case op.Record == nil:
		o.gone = true
		return o
	}
	if o.err = op.handedOver(ctx, host); o.err != nil || dry {
		return o
	}
	if o.err = op.giveUp(); o.err == nil {
		s.logger.Info("released a container to go-cni", "container", op.ID)
	}
	return o
}

// beginRelease locks the container. It returns ErrBusy if another call has locked it,
// and an error if locks between processes are not available.
func (s *snapshot) beginRelease(ctx context.Context, host *hostns.NetNS, id record.ID) (*operation, error) {
	own, err := host.Dup()
	if err != nil {
		return nil, err
	}
	op := &operation{snapshot: s, Container: s.New(id, own)}
	brief, cancel := context.WithTimeoutCause(ctx, lockedGrace, ErrBusy)
	defer cancel()
	if err := op.lock(brief, container.Access{Waiting: container.Looking}); err != nil {
		if errors.Is(context.Cause(brief), ErrBusy) && !errors.Is(err, lock.ErrUnavailable) {
			err = fmt.Errorf("%w; call Release again", ErrBusy)
		}
		return nil, join(err, own.Close())
	}
	return op, nil
}

// handedOver returns nil if go-cni, called from the namespace host, could remove the
// whole container. It fills in the operation's attachments.
func (op *operation) handedOver(ctx context.Context, host *hostns.NetNS) error {
	boot, err := op.BootID()
	if err != nil {
		return err
	}
	if err := handover.Record(op.Record, op.owner, boot, host.String()); err != nil {
		return withSentinel(err)
	}
	if op.pluginRoot != "" {
		return fmt.Errorf("its executed plugins have the plugin root %s, and those of go-cni would not; Remove the container", op.pluginRoot)
	}
	if err := op.namespaceHandedOver(); err != nil {
		return err
	}
	if op.attachments, err = op.fromRecord(); err != nil {
		return err
	}
	g := &handover.GoCNI{
		PluginDirs: op.pluginDirs, CacheDir: op.stateDir, Reads: canonical(op.stateDir) == canonical(libcni.CacheDir),
		Host: releasing{op},
	}
	for _, n := range op.networks {
		g.Networks = append(g.Networks, handover.Network{List: n.config, IfName: n.ifName})
	}
	errs := []error{handover.SameOptions(op.Record.Attachments), g.Loaded()}
	for _, a := range op.attachments {
		if err := a.handedOver(ctx, g); err != nil {
			errs = append(errs, fmt.Errorf("network %q, interface %s: %w", a.network.config.Name, a.IfName, err))
		}
	}
	return withSentinel(join(errs...))
}

// namespaceHandedOver returns nil if the recorded path, which go-cni's caller gives to
// plugins, leads to the container's namespace, and no other process may keep the
// namespace alive by a descriptor.
func (op *operation) namespaceHandedOver() error {
	if err := op.EnterRecorded(false); err != nil {
		return err
	}
	if op.Reached != container.ByPath {
		return fmt.Errorf("%s no longer leads to its namespace, so that go-cni would leave what depends on it; Remove the container: %w",
			op.Record.NetNS.Path, ErrInvalidNetNS)
	}
	if op.Pins.KeepsHere(op.ID, op.NetNS) {
		return nil
	}
	alive, err := op.RuntimeAlive(op.Record)
	if err == nil && alive {
		err = errors.New("the process that attached it lives, and may keep its namespace by an open descriptor; " +
			"call Release of the Runtime that attached it, or end that process")
	}
	return err
}

// handedOver returns nil if go-cni could remove the attachment.
func (a *attachment) handedOver(ctx context.Context, g *handover.GoCNI) error {
	if err := handover.Whole(a.op.Record.Find(a.IfName)); err != nil {
		return err
	}
	if len(a.dirs) > 0 {
		return errors.New("it was attached with an order of plugin directories (WithPluginDirOrder), for which go-cni has no option; Remove the container")
	}
	live, err := a.isAlive(a.op.attachments)
	if err == nil && !live {
		err = fmt.Errorf("there is no such interface in the container, and plugins then leave its rules; Remove the container: %w", ErrNotAttached)
	}
	return join(err, g.Attachment(ctx, a.described(), a))
}

// releasing is a container that Release looks at.
type releasing struct{ *operation }

// HasBuiltIn implements [handover.Host].
func (r releasing) HasBuiltIn(typ string) bool { return r.runner.BuiltIn(typ) != nil }

// FirewallBackend implements [handover.Host].
func (r releasing) FirewallBackend(ctx context.Context, config json.RawMessage) (string, error) {
	backend, ok, err := r.runner.Detect(ctx, r.bus, r.Host.Handle, known.Firewall, config)
	if !ok {
		return fwrules.DetectedIPTables, nil
	}
	return backend, err
}

// giveUp removes the container from the ledger of an earlier version, so that GC does not
// take its reservations for garbage, then unpins its namespace and deletes the record. In this
// order a crash leaves the container on record, and Recover adopts it and pins its
// namespace again.
func (op *operation) giveUp() error {
	if err := op.ledger().Forget(op.attachments.keys()); err != nil {
		return err
	}
	err := op.Unpin()
	if err == nil {
		err = op.DeleteRecord(op.Record)
	}
	if err != nil {
		return join(err, op.Pin()) // it stays on record
	}
	return nil
}
