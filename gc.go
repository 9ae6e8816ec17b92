package cni

import (
	"context"
	"fmt"
	"slices"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/lock"
	"github.com/embedcni/cni/internal/record"
)

// GCOptions says what GC keeps.
type GCOptions struct {
	// Keep are the containers that are wanted.
	Keep []string
	// KeepNone says that an empty Keep is meant. Without it an empty list is an
	// error: it is more often a mistake, and would detach every container.
	KeepNone bool
	// DryRun reports what would be removed, and removes nothing.
	DryRun bool
}

// GC removes every container that this owner has recorded and that is not
// wanted, as Remove does, and then asks the plugins of the loaded networks of
// version 1.1.0 and later to collect what belongs to no attachment on record,
// of any owner, unless the network says disableGC. No ADD or DEL runs beside
// it, in this or another process; it waits for those that do.
//
// The report says what became of each container; the error, what plugins
// answered to GC: all of them are asked.
func (r *Runtime) GC(ctx context.Context, o GCOptions) (*Report, error) {
	if len(o.Keep) == 0 && !o.KeepNone {
		return nil, fmt.Errorf("collect garbage: nothing is to be kept, and KeepNone does not say so: %w", ErrInvalidArgument)
	}
	s := r.current.Load()
	report := &Report{}
	if o.DryRun {
		return report, s.unwanted(o, func(id string) { report.Removed = append(report.Removed, id) })
	}
	held, err := s.locks.LockAll(ctx, []lock.Key{{Name: barrier}})
	if err != nil {
		return nil, fmt.Errorf("collect garbage: %w", err)
	}
	err = s.collect(ctx, o, report)
	return report, join(err, held.Release())
}

// unwanted calls f for each container of this owner that is not to be kept.
func (s *snapshot) unwanted(o GCOptions, f func(id string)) error {
	found, err := s.owned()
	if err != nil {
		return fmt.Errorf("collect garbage: %w", err)
	}
	for _, one := range found {
		if id := one.Record.ContainerID; id != "" && !slices.Contains(o.Keep, id) {
			f(id)
		}
	}
	return nil
}

func (s *snapshot) collect(ctx context.Context, o GCOptions, report *Report) error {
	inside := context.WithValue(ctx, inGC{}, true)
	err := s.unwanted(o, func(id string) {
		if ctx.Err() == nil {
			report.add(id, false, s.remove(inside, &Namespace{id: id}))
		}
	})
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return err
	}
	report.Adopted = append(report.Adopted, o.Keep...)
	return join(s.tidy(), s.collectByPlugins(ctx))
}

// inGC marks the context of a removal inside GC, which has the barrier.
type inGC struct{}

// collectByPlugins runs GC for each loaded network.
func (s *snapshot) collectByPlugins(ctx context.Context) error {
	valid, err := s.validAttachments()
	if err != nil {
		return fmt.Errorf("collect garbage: %w", err)
	}
	host, err := openHostNetNS(s.hostNetNS)
	if err != nil {
		return err
	}
	op := &operation{snapshot: s, verb: "GC", host: host}
	var errs []error
	for _, n := range s.networks {
		a := &attachment{op: op, network: n}
		errs = append(errs, a.errors("GC", a.chain().GC(ctx, valid[n.config.Name])))
	}
	return join(append(errs, host.close())...)
}

// validAttachments are all attachments on this host by network: those on
// record, of every owner, and those that only libcni's cache knows. GC must not
// take what another runtime attached for garbage.
func (s *snapshot) validAttachments() (map[string][]types.GCAttachment, error) {
	valid := map[string][]types.GCAttachment{}
	add := func(network, id, ifName string) {
		a := types.GCAttachment{ContainerID: id, IfName: ifName}
		if !slices.Contains(valid[network], a) {
			valid[network] = append(valid[network], a)
		}
	}
	found, err := s.records.List()
	if err != nil {
		return nil, err
	}
	for _, f := range found {
		if f.Err != nil {
			return nil, fmt.Errorf("what is attached is not known: %w", f.Err)
		}
		for _, n := range f.Record.Networks {
			if n.State != record.Deleted {
				add(n.Name, f.Record.ContainerID, n.IfName)
			}
		}
	}
	cached, err := libcni.NewCNIConfigWithCacheDir(nil, s.stateDir, nil).GetCachedAttachments("")
	if err != nil {
		return nil, err
	}
	for _, c := range cached {
		add(c.Network, c.ContainerID, c.IfName)
	}
	return valid, nil
}
