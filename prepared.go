package cni

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"

	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/conflist"
	"github.com/embedcni/cni/internal/container"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/warm"
	"github.com/embedcni/cni/netns"
)

// prepared is a container that was made ahead of time.
type prepared struct {
	snapshot *snapshot
	id       record.ID
	path     string
	ns       netns.ID // of the container
	host     string   // the namespace in which its plugins ran
	settling *sync.WaitGroup
	made     []madeAhead
}

// madeAhead is the part of an attachment that was made.
type madeAhead struct {
	network, ifName string
	part            chain.Part // the rest
	facts           map[string]json.RawMessage
	plugins         []record.Plugin // that have run
	seen            *warm.Sight     // the state after it was made
}

func randomID(prefix string) string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails, see its documentation
	return prefix + hex.EncodeToString(b[:])
}

// prepare makes a namespace and attaches it as far as possible without a caller.
func (p *Pool) prepare(ctx context.Context, s *snapshot) (*prepared, error) {
	handle, path, err := p.newNetNS("warm-")
	if err != nil {
		return nil, err
	}
	w := &prepared{snapshot: s, id: record.ID(filepath.Base(path)), path: path, settling: &p.settling}
	if err = w.attach(ctx); err != nil {
		err = join(err, s.RemoveUnrecorded(w.id, path))
	}
	return w, join(err, handle.Close())
}

func (w *prepared) attach(ctx context.Context) error {
	op, err := w.snapshot.begin(&Namespace{id: w.id, path: w.path, scope: newScope(), ours: true}, "ADD")
	if err != nil {
		return err
	}
	defer op.end()
	op.Warm, w.host, w.ns = true, op.Host.String(), op.NetNS.ID()
	for _, a := range op.attachments {
		a.part.To = a.network.ahead()
	}
	op.attachments = slices.DeleteFunc(op.attachments, func(a *attachment) bool { return a.part.To == 0 })
	if err := op.lock(ctx, container.Access{}); err != nil {
		return err
	}
	if err := op.write(ctx); err != nil {
		return err
	}
	if err := w.make(ctx, op); err != nil {
		if rerr := op.rollBack(ctx); rerr != nil {
			return &rollbackError{err, rerr}
		}
		return err
	}
	return nil
}

// make attaches the container, and records the resulting state.
func (w *prepared) make(ctx context.Context, op *operation) error {
	if _, err := op.attach(ctx, false); err != nil {
		return err
	}
	for _, a := range op.attachments {
		t, done := a.target()
		seen, err := warm.See(ctx, op.place(), t)
		done()
		if err != nil {
			return a.error("ADD", err)
		}
		plugins := a.network.config.Plugins
		rest := chain.Part{From: a.part.To, To: len(plugins), Result: a.partial}
		ran := warm.Ran(plugins[:a.part.To], a.plugins.Recorded())
		w.made = append(w.made, madeAhead{a.network.config.Name, a.IfName, rest, a.facts.All(), ran, seen})
	}
	return nil
}

// place returns the place of the operation's attachments.
func (op *operation) place() warm.Place {
	return warm.Place{
		Host: op.Host, Container: op.NetNS, Firewalld: op.bus,
		Filters: netfilter.Options{Sockets: op.sockets, Held: op.LockFile()},
	}
}

// ahead returns how many plugins of the network, from the first, need nothing
// from a caller.
func (n *Network) ahead() int { return warm.Ahead(n.config.Plugins, n.snapshot.runner.IsRegistered) }

// fits reports whether w fits the operation.
func (w *prepared) fits(op *operation) bool {
	if op.Host.String() != w.host {
		return false
	}
	used := 0
	for _, a := range op.attachments {
		if m := w.find(a); m != nil {
			a.part, a.partial = m.part, m.part.Result
			a.facts.Reset(m.facts)
			a.plugins.Reset(m.plugins, nil)
			used++
		} else if a.network.ahead() > 0 {
			return false
		}
		if a.part.From > 0 && !warm.CanWait(a.Args, a.ConfigArgs) {
			return false
		}
	}
	return used == len(w.made)
}

func (w *prepared) find(a *attachment) *madeAhead {
	i := slices.IndexFunc(w.made, func(m madeAhead) bool { return m.network == a.network.config.Name && m.ifName == a.IfName })
	if i < 0 {
		return nil
	}
	return &w.made[i]
}

// take makes w the container of ns, under an equal configuration. After
// warm.ErrUnfit or warm.ErrDead nothing has happened.
func (w *prepared) take(ctx context.Context, s *snapshot, ns *Namespace) (*Result, error) {
	own := *ns
	own.path = w.path
	op, err := s.begin(&own, "ADD")
	if err != nil {
		if !warm.Exists(w.path, w.ns) {
			return nil, fmt.Errorf("%w: %w", warm.ErrDead, err)
		}
		return nil, fmt.Errorf("%w: %w", warm.ErrUnfit, err) // making one returns the reason
	}
	defer op.end()
	s.reap(op.Host, true)
	if s.hostNetNS != "" && op.Host.String() != w.host {
		return nil, fmt.Errorf("%s has become another namespace: %w", s.hostNetNS, warm.ErrDead)
	}
	if !w.fits(op) {
		return nil, warm.ErrUnfit
	}
	if err := w.lives(ctx, op); err != nil {
		return nil, err
	}
	if err := op.lock(ctx, container.Access{}); err != nil {
		return nil, fmt.Errorf("%w: %w", warm.ErrUnfit, err)
	}
	if err := op.clearDead(ctx); err != nil {
		return nil, fmt.Errorf("%w: %w", warm.ErrUnfit, err)
	}
	if err := op.takeOver(ctx, w); err != nil {
		return nil, fmt.Errorf("%w: %w", warm.ErrUnfit, err)
	}
	w.settling.Add(1)
	go func(taken *record.Pending) {
		defer w.settling.Done()
		w.forget(taken)
	}(op.Pending())
	return op.finishSetup(ctx, false)
}

// lives returns warm.ErrDead unless everything that was made still exists, and
// warm.ErrUnfit if that cannot be known.
func (w *prepared) lives(ctx context.Context, op *operation) error {
	if op.NetNS.ID() != w.ns {
		return fmt.Errorf("%s has become another namespace: %w", w.path, warm.ErrDead)
	}
	for _, m := range w.made {
		if err := m.seen.Unchanged(ctx, op.place()); errors.Is(err, warm.ErrDead) {
			return fmt.Errorf("network %q: %w", m.network, err)
		} else if err != nil {
			return fmt.Errorf("%w: network %q: %w", warm.ErrUnfit, m.network, err)
		}
	}
	return nil
}

// forget deletes the record of w once the record that replaces it survives a
// power cut.
func (w *prepared) forget(taken *record.Pending) {
	err := taken.Wait()
	if err == nil {
		err = w.snapshot.DeleteRecord(&record.Record{ContainerID: w.id})
	}
	if err != nil {
		w.snapshot.logger.Warn("delete the record of a container that was made ahead of time and is used now", "container", w.id, "error", err)
	}
}

// takeOver writes the record of a container that plugins know under the ID of w.
// From then on w is that container; its other record is deleted later.
func (op *operation) takeOver(ctx context.Context, w *prepared) error {
	op.MadeAs = record.PluginID(w.id)
	for _, a := range op.attachments {
		a.ContainerID = string(op.MadeAs)
		a.attempted = a.part.From > 0
	}
	if err := op.write(ctx); err != nil {
		return join(err, op.Records.Delete(op.ID))
	}
	return nil
}

// makesTheSame reports whether containers that were made ahead of time under s
// can be used under now: the networks are equal, and so is everything else that
// decides which plugins run, with which input, where they run, and where they
// are recorded.
func (s *snapshot) makesTheSame(now *snapshot) bool {
	return s == now ||
		s.Records == now.Records && s.own == now.own && s.owner == now.owner && s.hostNetNS == now.hostNetNS &&
			s.runner.Choice.Same(now.runner.Choice) && slices.EqualFunc(s.networks, now.networks, (*Network).same)
}

func (n *Network) same(other *Network) bool {
	return n.ifName == other.ifName && conflist.Equal(n.config, other.config)
}
