package cni

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/boot"
	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/claims"
	"github.com/embedcni/cni/internal/conflist"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/lock"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/runner"
	"github.com/embedcni/cni/netns"
)

// operation is one call of Setup, Remove or Check under way: all that plugins
// are going to be given, validated.
type operation struct {
	*snapshot
	verb        string
	id          record.ID
	path        string // CNI_NETNS
	host        *hostns.NetNS
	own         *hostns.NetNS // the caller's, where host is the record's; else nil
	hostGone    bool          // the record's is gone, and what plugins made there
	asked       bool          // the caller wants the container gone
	container   *netns.Handle // what path leads to, open until end; nil if that is nothing
	attachments []*attachment
	held        *lock.Held
	rec         *record.Record  // nil: there is none, or not yet
	damaged     bool            // rec is only what could be read of it
	rebooted    bool            // rec is of another boot of the machine
	reached     reached         // how the recorded namespace was found
	inGC        bool            // GC has the barrier already
	pending     *record.Pending // rec, on its way to the disk; nil: it is not
	entered     *record.Pending // the ledger, on its way to the disk before the record goes
	ours        bool            // the namespace was made for the container, and goes with it
	as          record.PluginID // the ID that plugins are given, if another
	warm        bool            // it is made ahead of time, and nobody's yet
	leaving     map[string]bool // interfaces that are being torn down
	cachedAll   *[]*attachment  // the container's, in libcni's cache; nil if not read
}

// attachment is one network of an operation.
type attachment struct {
	chain.Attachment
	op        *operation
	network   *Network
	attempted bool            // an ADD was begun
	state     record.State    // how far the ADD got, from the record
	partial   chain.Partial   // what a failed ADD got to
	noted     []byte          // the result that the record has, if it was noted here
	part      chain.Part      // which plugins the ADD is for; zero: all
	facts     facts           // what built-in plugins have noted
	plugins   runner.Plugins  // which plugins run, or ran
	lost      bool            // the interface was not in the container before its DEL
	claims    claims.Claims   // what host-local has reserved in this call
	garbage   *claims.Garbage // of a GC: what may be released
}

// begin validates everything, and finds out where the plugins will run. It must
// be called on the goroutine of the caller, whose thread decides that.
func (s *snapshot) begin(ns *Namespace, verb string) (*operation, error) {
	if err := validateID(ns.id); err != nil {
		return nil, err
	}
	op := &operation{snapshot: s, verb: verb, id: ns.id, ours: ns.ours}
	if err := op.plan(ns); err != nil {
		return nil, err
	}
	host, err := s.hosts.Open(s.hostNetNS)
	if err != nil {
		return nil, err
	}
	op.host = host
	if op.container, op.path, err = host.OpenContainer(ns.path, verb); err != nil {
		return nil, join(err, host.Close())
	}
	for _, a := range op.attachments {
		a.NetNS = op.path
	}
	return op, nil
}

// end gives back what the operation holds.
func (op *operation) end() {
	op.leave()
	if op.as == "" {
		_ = op.pending.Wait() // who relied on it has waited, and said why not
		_ = op.entered.Wait()
	}
	if op.held != nil {
		if err := op.held.Release(); err != nil {
			op.logger.Error("release lock", "container", op.id, "error", err)
		}
	}
	op.runner.Ahead.TakeBack(op.host.Handle, op.locks, lock.Key{Name: barrier}, op.logger)
	op.leaveHost()
	if err := op.host.Close(); err != nil {
		op.logger.Error("close network namespace", "error", err)
	}
}

// leave lets the container's namespace go, as far as the operation holds it.
func (op *operation) leave() {
	if op.container == nil {
		return
	}
	if err := op.container.Close(); err != nil {
		op.logger.Error("close network namespace", "container", op.id, "error", err)
	}
	op.container = nil
}

// inside is the container's namespace if that is open, and the attachment's: the
// path in libcni's cache may be another one.
func (a *attachment) inside() *netns.Handle {
	if a.NetNS != a.op.path {
		return nil
	}
	return a.op.container
}

// bootID is that of the machine.
func (s *snapshot) bootID() (string, error) {
	if s.boot != "" {
		return s.boot, nil
	}
	return boot.ID()
}

func (op *operation) key() string { return containerKey(op.id) }

// containerKey is the key by which calls for one container exclude each other.
func containerKey(id record.ID) string { return "container/" + string(id) }

// keys are what calls for one container exclude each other by, and what GC
// excludes all of them by.
func (op *operation) keys() []lock.Key {
	keys := []lock.Key{{Name: op.key()}}
	if !op.inGC {
		keys = append(keys, lock.Key{Name: barrier, Shared: true})
	}
	return keys
}

// barrier is the key that ADD and DEL share and GC has alone: the specification
// forbids GC beside them. It is taken before the container's, which GC takes
// for each container that it removes.
const barrier = lock.First

// lock waits until no other call for the container is under way, in this or
// another process. It is refused to who would wait for itself.
func (op *operation) lock(ctx context.Context) (err error) {
	if err := op.refuseInside(ctx); err != nil {
		return err
	}
	op.held, err = op.locks.LockAll(ctx, op.keys())
	return err
}

// plan makes the attachments: which networks, with which interface names,
// arguments and capabilities.
func (op *operation) plan(ns *Namespace) error {
	selected, err := op.selected(ns)
	errs := []error{err}
	taken := map[string]string{}
	for _, sel := range selected {
		if op.verb == "DEL" && !sel.attachable(ns) {
			continue
		}
		a, err := op.newAttachment(ns, sel)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if other, ok := taken[a.IfName]; ok {
			errs = append(errs, fmt.Errorf("networks %q and %q both want interface %s: %w",
				other, sel.network, a.IfName, ErrInvalidArgument))
		}
		taken[a.IfName] = sel.network
		op.attachments = append(op.attachments, a)
	}
	if op.verb == "ADD" {
		errs = append(errs, op.undeclared())
	}
	return join(errs...)
}

// attachable reports whether the container can have been attached to a network,
// as far as the names allow. A wrong name that the caller gives is an error; a
// network that is merely loaded beside is passed over by a removal.
func (sel selection) attachable(ns *Namespace) bool {
	if sel.network == "" {
		return false
	}
	if sel.ifName != "" && validateIfName(sel.ifName) != nil {
		return true // newAttachment says what is wrong
	}
	name := cmp.Or(sel.ifName, sel.of.ifName)
	return validateIfName(name) == nil && validateAttachmentName(sel.network, string(ns.id), name) == nil
}

func (op *operation) newAttachment(ns *Namespace, sel selection) (*attachment, error) {
	n := sel.of
	name := cmp.Or(sel.ifName, n.ifName)
	if err := conflist.RequireName(n.config); err != nil {
		return nil, fmt.Errorf("network for interface %s: %w: %w", name, err, ErrInvalidConfig)
	}
	if err := validateIfName(name); err != nil {
		return nil, fmt.Errorf("interface name %q: %w", name, err)
	}
	if err := validateAttachmentName(n.config.Name, string(ns.id), name); err != nil {
		return nil, err
	}
	args, err := sortedArgs(merge(ns.args, sel.args))
	if err != nil {
		return nil, fmt.Errorf("network %q: %w", sel.network, err)
	}
	capabilities, err := wireCapabilities(merge(ns.capabilityArgs, sel.capabilityArgs))
	if err != nil {
		return nil, fmt.Errorf("network %q: %w", sel.network, err)
	}
	a := &attachment{op: op, network: n}
	a.ConfigArgs = merge(ns.configArgs, sel.configArgs)
	a.RuntimeConf = libcni.RuntimeConf{
		ContainerID: string(ns.id), IfName: name, Args: args, CapabilityArgs: capabilities,
	}
	return a, nil
}

// merge lays the values for one network over those for all.
func merge[V any](all, one map[string]V) map[string]V {
	merged := maps.Clone(all)
	if merged == nil {
		merged = map[string]V{}
	}
	maps.Copy(merged, one)
	return merged
}

// undeclared looks for capabilities that would have no effect, because no
// plugin of a network they were given for declares them.
func (op *operation) undeclared() error {
	given, declared := map[string]bool{}, map[string]bool{}
	for _, a := range op.attachments {
		for name, value := range a.CapabilityArgs {
			given[name] = given[name] || !isEmpty(value)
			declared[name] = declared[name] || a.network.declares(name)
		}
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if !given[name] || declared[name] {
			continue
		}
		if op.strictCaps {
			errs = append(errs, fmt.Errorf("capability %q is declared by no plugin: %w", name, ErrInvalidArgument))
			continue
		}
		op.logger.Warn("capability is declared by no plugin and has no effect", "capability", name, "container", op.id)
	}
	return join(errs...)
}

func (n *Network) declares(capability string) bool {
	return slices.ContainsFunc(n.config.Plugins, func(p *libcni.PluginConfig) bool {
		return p.Network.Capabilities[capability]
	})
}

// isEmpty tells whether a capability asks for nothing, as an empty list of
// ports does.
func isEmpty(value any) bool {
	if value == nil {
		return true
	}
	switch v := reflect.ValueOf(value); v.Kind() {
	case reflect.Slice, reflect.Map, reflect.String:
		return v.Len() == 0
	default:
		return false
	}
}

// error is an Error that says where: which network of which container.
func (a *attachment) error(verb string, err error) *Error {
	e := &Error{Op: verb, Network: a.network.config.Name, Err: err}
	e.ContainerID, e.IfName = string(a.op.id), a.IfName
	return e
}

// errors makes Errors of the error of a verb on the attachment. A plugin's is an
// Error already, wrapped by package chain; others become one.
func (a *attachment) errors(verb string, err error) error {
	if err == nil {
		return nil
	}
	if all := pluginErrors(err); len(all) > 0 {
		return join(all...)
	}
	if invalid := (*chain.ResultError)(nil); errors.As(err, &invalid) {
		e := a.error(verb, withSentinel(invalid.Err))
		e.Plugin = invalid.Plugin
		return e
	}
	return a.error(verb, withSentinel(err))
}

// pluginErrors returns the Errors that err wraps; after a DEL there can be several.
func pluginErrors(err error) []error {
	var all []error
	switch e := err.(type) {
	case *Error:
		return []error{e}
	case interface{ Unwrap() error }:
		return pluginErrors(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			all = append(all, pluginErrors(one)...)
		}
	}
	return all
}
