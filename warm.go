package cni

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/netns"
)

// warm is a container that was made ahead of time.
type warm struct {
	snapshot *snapshot
	id       record.ID
	path     string
	ns       netns.ID // of the container
	host     string   // the namespace in which its plugins ran
	settling *sync.WaitGroup
	made     []madeAhead
}

// madeAhead is how far an attachment was made.
type madeAhead struct {
	network, ifName string
	part            chain.Part // the rest
	facts           map[string]json.RawMessage
	plugins         []record.Plugin // that have run
	seen            *sight          // what was made
}

// Why a container that was made ahead of time is not taken.
var (
	errDoesNotFit = errors.New("does not fit") // it is not what is wanted now
	errDead       = errors.New("made ahead of time, and dead since")
)

func randomID(prefix string) string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails, see its documentation
	return prefix + hex.EncodeToString(b[:])
}

// prepare makes a namespace and attaches it as far as can be without a caller.
func (p *Pool) prepare(s *snapshot) (*warm, error) {
	handle, path, err := p.newNetNS("warm-")
	if err != nil {
		return nil, err
	}
	w := &warm{snapshot: s, id: record.ID(filepath.Base(path)), path: path, settling: &p.settling}
	if err = w.attach(p.fill); err != nil {
		err = join(err, s.removeUnrecorded(w.id, path))
	}
	return w, join(err, handle.Close())
}

func (w *warm) attach(ctx context.Context) error {
	op, err := w.snapshot.begin(&Namespace{id: w.id, path: w.path, scope: newScope(), ours: true}, "ADD")
	if err != nil {
		return err
	}
	defer op.end()
	op.warm, w.host, w.ns = true, op.host.String(), op.netNS()
	for _, a := range op.attachments {
		a.part.To = a.network.ahead()
	}
	op.attachments = slices.DeleteFunc(op.attachments, func(a *attachment) bool { return a.part.To == 0 })
	if err := op.lockEnding(ctx); err != nil {
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

// make attaches, and looks at what has come of it.
func (w *warm) make(ctx context.Context, op *operation) error {
	ctx = op.share(ctx)
	if _, err := op.attach(ctx, false); err != nil {
		return err
	}
	for _, a := range op.attachments {
		seen, err := a.see(ctx)
		if err != nil {
			return a.error("ADD", err)
		}
		rest := chain.Part{From: a.part.To, To: len(a.network.config.Plugins), Result: a.partial}
		w.made = append(w.made, madeAhead{a.network.config.Name, a.IfName, rest, a.facts.all(), a.ranAhead(), seen})
	}
	return nil
}

// ranAhead are the plugins whose ADD has run. Those for the rest are chosen when
// they run.
func (a *attachment) ranAhead() []record.Plugin {
	return slices.DeleteFunc(a.kinds.recorded(), func(p record.Plugin) bool {
		return !slices.ContainsFunc(a.network.config.Plugins[:a.part.To], func(c *libcni.PluginConfig) bool {
			return p.Type == c.Network.Type || p.Type == c.Network.IPAM.Type
		})
	})
}

// ahead is how many plugins of the network, from the first, do without anything
// that a caller may say.
func (n *Network) ahead() int {
	for i, p := range n.config.Plugins {
		own := n.snapshot.isRegistered(p.Network.Type) || n.snapshot.isRegistered(p.Network.IPAM.Type)
		if own || len(p.Network.Capabilities) > 0 || !poolable(p.Network.Type) || !poolable(p.Network.IPAM.Type) {
			return i
		}
	}
	return len(n.config.Plugins)
}

// poolable reports whether a plugin, if there is one, needs nothing from the caller
// but arguments.
func poolable(typ string) bool { return typ == "" || known.Of(typ).Poolable }

// fits tells whether w is what the operation is about.
func (w *warm) fits(op *operation) bool {
	if op.host.String() != w.host {
		return false
	}
	used := 0
	for _, a := range op.attachments {
		if m := w.find(a); m != nil {
			a.part, a.partial = m.part, m.part.Result
			a.facts.set(m.facts)
			a.kinds.set(m.plugins)
			used++
		} else if a.network.ahead() > 0 {
			return false
		}
		if a.part.From > 0 && !a.late() {
			return false
		}
	}
	return used == len(w.made)
}

func (w *warm) find(a *attachment) *madeAhead {
	i := slices.IndexFunc(w.made, func(m madeAhead) bool { return m.network == a.network.config.Name && m.ifName == a.IfName })
	if i < 0 {
		return nil
	}
	return &w.made[i]
}

// late tells whether the arguments of the call may come after the first plugins
// have run. DEL gives them to those as well, and a plugin that reads CNI_ARGS
// refuses what it does not know unless it is told to ignore it.
func (a *attachment) late() bool {
	ignored := len(a.Args) == 0
	for _, arg := range a.Args {
		if known.ReadsArg(arg[0]) {
			return false
		}
		ignored = ignored || arg[0] == "IgnoreUnknown" && (arg[1] == "1" || arg[1] == "true")
	}
	for key := range a.ConfigArgs {
		if known.ReadsArg(key) {
			return false
		}
	}
	return ignored
}

// take makes w the container of ns, under a configuration that makes the same.
// With errDoesNotFit or errDead nothing has happened.
func (w *warm) take(ctx context.Context, s *snapshot, ns *Namespace) (*Result, error) {
	own := *ns
	own.path = w.path
	op, err := s.begin(&own, "ADD")
	if err != nil {
		if !w.there() {
			return nil, fmt.Errorf("%w: %w", errDead, err)
		}
		return nil, fmt.Errorf("%w: %w", errDoesNotFit, err) // what is wrong is said when it is made
	}
	defer op.end()
	s.reap(op.host, true)
	if s.hostNetNS != "" && op.host.String() != w.host {
		return nil, fmt.Errorf("%s has become another namespace: %w", s.hostNetNS, errDead)
	}
	if !w.fits(op) {
		return nil, errDoesNotFit
	}
	if err := w.lives(op.share(ctx), op); err != nil {
		return nil, err
	}
	if err := op.lockEnding(ctx); err != nil {
		return nil, fmt.Errorf("%w: %w", errDoesNotFit, err)
	}
	if err := op.clearDead(ctx); err != nil {
		return nil, fmt.Errorf("%w: %w", errDoesNotFit, err)
	}
	if err := op.takeOver(ctx, w); err != nil {
		return nil, fmt.Errorf("%w: %w", errDoesNotFit, err)
	}
	w.settling.Add(1)
	go func(taken *record.Pending) {
		defer w.settling.Done()
		w.forget(taken)
	}(op.pending)
	return op.finishSetup(ctx, false)
}

// lives fails with errDead unless all that was made is still there, and with
// errDoesNotFit if that cannot be known.
func (w *warm) lives(ctx context.Context, op *operation) error {
	if op.netNS() != w.ns {
		return fmt.Errorf("%s has become another namespace: %w", w.path, errDead)
	}
	for _, m := range w.made {
		if err := m.seen.still(ctx, op); errors.Is(err, errDead) {
			return fmt.Errorf("network %q: %w", m.network, err)
		} else if err != nil {
			return fmt.Errorf("%w: network %q: %w", errDoesNotFit, m.network, err)
		}
	}
	return nil
}

// forget deletes the record of w when the one that takes its place survives a
// power cut.
func (w *warm) forget(taken *record.Pending) {
	err := taken.Wait()
	if err == nil {
		err = w.snapshot.records.Delete(w.id)
	}
	if err != nil {
		w.snapshot.logger.Warn("delete the record of a container that was made ahead of time and is used now", "container", w.id, "error", err)
	}
}

// takeOver writes the record of a container that plugins know under the ID of
// w. From then on it is this one; later the other record goes.
func (op *operation) takeOver(ctx context.Context, w *warm) error {
	op.as = record.PluginID(w.id)
	for _, a := range op.attachments {
		a.ContainerID = string(op.as)
		a.attempted = a.part.From > 0
	}
	if err := op.write(ctx); err != nil {
		return join(err, op.records.Delete(op.id))
	}
	return nil
}

// takenOver are the IDs of containers that were made ahead of time and have become
// others.
func takenOver(found []record.Found) map[record.PluginID]bool {
	taken := map[record.PluginID]bool{}
	for _, f := range found {
		if f.Record.PluginID != "" {
			taken[f.Record.PluginID] = true
		}
	}
	return taken
}

// withoutWarm leaves out what a pool of a process that lives has made ahead of
// time: that one looks after it, unless its removal has failed. Of what is
// another container's by now, because
// the process was killed between two steps of taking it, the record is deleted,
// unless nothing is to be changed. While a record names no container, any of
// them may have become that one, and all stay.
func (s *snapshot) withoutWarm(found []record.Found, dry bool) ([]record.Found, error) {
	taken := takenOver(found)
	nameless := slices.IndexFunc(found, func(f record.Found) bool { return f.Record.ContainerID == "" })
	var rest []record.Found
	for _, f := range found {
		if !f.Record.Warm {
			rest = append(rest, f)
			continue
		}
		alive, err := s.runtimeAlive(f.Record)
		switch {
		case err != nil:
			f.Err = join(f.Err, err)
			rest = append(rest, f)
		case alive && !failed(f.Record):
		case f.Err != nil:
			rest = append(rest, f)
		case taken[f.Record.Plugins()] && dry:
		case taken[f.Record.Plugins()]:
			if err := s.records.Delete(f.Record.ContainerID); err != nil {
				return nil, err
			}
		case nameless >= 0:
			f.Err = fmt.Errorf("it may be another container's by now: %v", found[nameless].Err)
			rest = append(rest, f)
		default:
			rest = append(rest, f)
		}
	}
	return rest, nil
}

// failed reports whether it was tried to remove the container, in vain.
func failed(rec *record.Record) bool {
	return slices.ContainsFunc(rec.Networks, func(n record.Network) bool { return n.Failures > 0 })
}

// poolDir is where the namespaces of pools are, a directory for each process.
func poolDir(recordDir string) string { return filepath.Join(recordDir, "pool") }

// livesBy begins the name of a directory that says by which locked byte its
// process lives. Earlier versions judge none of that name.
const livesBy = "life-"

// poolName names the directory of this process: by its byte, else its number.
func (s *snapshot) poolName() (string, error) {
	if life := s.life(); life != "" {
		return livesBy + life, nil
	}
	return s.identity()
}

// poolAlive reports whether the process with that directory still runs, or may.
func (s *snapshot) poolAlive(name string) (bool, error) {
	if life, ok := strings.CutPrefix(name, livesBy); ok {
		return s.runtimeAlive(&record.Record{Life: life})
	}
	return s.runtimeAlive(&record.Record{Runtime: name})
}

// makesTheSame reports whether containers that were made ahead of time under s
// can be taken under now: the networks are equal, and whatever else decides which
// plugins run, with what, where, and where it is recorded.
func (s *snapshot) makesTheSame(now *snapshot) bool {
	return s == now ||
		s.records == now.records && s.own == now.own && s.owner == now.owner && s.hostNetNS == now.hostNetNS &&
			slices.Equal(s.pluginDirs, now.pluginDirs) && s.allowInsecure == now.allowInsecure &&
			s.choice.same(now.choice) && slices.EqualFunc(s.networks, now.networks, (*Network).same)
}

func (n *Network) same(other *Network) bool {
	return n.ifName == other.ifName && n.config.Name == other.config.Name &&
		n.config.CNIVersion == other.config.CNIVersion && bytes.Equal(n.config.Bytes, other.config.Bytes) &&
		slices.EqualFunc(n.config.Plugins, other.config.Plugins, func(a, b *libcni.PluginConfig) bool {
			return bytes.Equal(a.Bytes, b.Bytes)
		})
}

// same compares which plugin is chosen for a type. What is registered is never
// run ahead of time, so that it matters for which types there is one.
func (c choice) same(other choice) bool {
	return slices.Equal(c.prefer, other.prefer) && c.preferAll == other.preferAll && c.without == other.without &&
		slices.Equal(slices.Sorted(maps.Keys(c.registered)), slices.Sorted(maps.Keys(other.registered)))
}
