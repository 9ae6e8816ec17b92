package netfilter

import (
	"context"
	"sync"

	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/netfilter/iptform"
	"github.com/embedcni/cni/internal/netfilter/native"
	"github.com/embedcni/cni/internal/netfilter/nftform"
)

// Snapshot is the rules of a namespace, each form read once, when it is first asked
// for. Comparing the rules of one attachment with it costs the same for any number of
// attachments. It is safe for concurrent use.
//
// Rules that it has exist. If it lacks some, because they changed while it was read or
// because it cannot tell from a listing, it asks the kernel: its answers are those of
// [Firewalls.Missing] at the time when it was read, or later.
type Snapshot struct {
	fw    *Firewalls // of one attachment
	dumps *dumps
}

// Kept are rules of earlier snapshots that need not be read again; see [iptform.Kept].
type Kept = iptform.Kept

// dumps are the forms that were read.
type dumps struct {
	native   once[*native.Table]
	nftform  once[*nftform.Tables]
	iptables *iptform.Dumps
}

// Read returns a snapshot of the namespace of fw, whose attachment it is for. Nothing is
// read before the first Missing that needs it.
func Read(fw *Firewalls) *Snapshot {
	return &Snapshot{fw, &dumps{iptables: fw.iptables.Dumps()}}
}

// For returns the same snapshot for another attachment, of which o has the siblings
// and notes.
func (s *Snapshot) For(o Options) *Snapshot {
	return &Snapshot{Open(s.fw.sockets.NS, o), s.dumps}
}

// Missing is [Firewalls.Missing].
func (s *Snapshot) Missing(ctx context.Context, b fwrules.Backend, r fwrules.Rules) ([]fwrules.Missing, error) {
	return s.fw.missing(ctx, b, r, s.missingIn)
}

// MissingSpoofCheck is [Firewalls.MissingSpoofCheck].
func (s *Snapshot) MissingSpoofCheck(ctx context.Context, c fwrules.SpoofCheck) ([]fwrules.Missing, error) {
	t, err := s.dumps.nftform.do(ctx, s.fw.nftform.Read)
	if err != nil {
		return nil, err
	}
	all := s.fw.SpoofCheck(c.ContainerID, c.IfName).MissingIn(t, c.Port, c.MAC)
	if len(all) > 0 && !t.Steady {
		return s.fw.MissingSpoofCheck(ctx, c)
	}
	return all, nil
}

func (s *Snapshot) missingIn(ctx context.Context, b fwrules.Backend, r fwrules.Rules) (all []fwrules.Missing, err error) {
	steady := true
	switch b {
	case fwrules.IPTables:
		return s.fw.iptables.MissingIn(ctx, s.dumps.iptables, r)
	case fwrules.NFTables:
		var t *nftform.Tables
		if t, err = s.dumps.nftform.do(ctx, s.fw.nftform.Read); err == nil {
			all, err = s.fw.nftform.MissingIn(ctx, t, r)
			steady = t.Steady
		}
	case fwrules.Native:
		var t *native.Table
		if t, err = s.dumps.native.do(ctx, s.fw.native.Read); err == nil {
			all, err = s.fw.native.MissingIn(ctx, t, r)
			steady = t.Steady
		}
	default:
		err = b.Unknown()
	}
	if err == nil && len(all) > 0 && !steady {
		return s.fw.missingIn(ctx, b, r)
	}
	return all, err
}

// once is a value that the first caller reads. If that fails, the next one tries again.
type once[T any] struct {
	mu    sync.Mutex
	done  bool
	value T
}

func (o *once[T]) do(ctx context.Context, read func(context.Context) (T, error)) (T, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.done {
		return o.value, nil
	}
	value, err := read(ctx)
	if err == nil {
		o.value, o.done = value, true
	}
	return value, err
}
