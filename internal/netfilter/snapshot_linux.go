package netfilter

import (
	"context"

	"github.com/embedcni/cni/internal/netfilter/fwrules"
)

// Snapshot is the rules of a namespace, each form read once, when it is first asked
// for. Comparing the rules of one attachment with it costs the same for any number of
// attachments. It is safe for concurrent use.
//
// Rules that it has exist. If it lacks some, because they changed while it was read, it
// asks the kernel: its answers are those of [Firewalls.Missing] at the time when it was
// read, or later.
type Snapshot struct {
	fw    *Firewalls // of one attachment
	sight *sight
}

// Read returns a snapshot of the namespace of fw, whose attachment it is for. Nothing is
// read before the first Missing that needs it.
func Read(fw *Firewalls) *Snapshot { return &Snapshot{fw, &sight{fw: fw}} }

// For returns the same snapshot for another attachment, of which o has the siblings
// and notes.
func (s *Snapshot) For(o Options) *Snapshot {
	return &Snapshot{Open(s.fw.sockets.NS, o), s.sight}
}

// Missing is [Firewalls.Missing].
func (s *Snapshot) Missing(ctx context.Context, r fwrules.Rules) ([]fwrules.Missing, error) {
	all, err := s.fw.missing(ctx, r, s.sight)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	if theirs, err := s.sight.readReference(ctx); err == nil && !theirs.Steady {
		return s.fw.Missing(ctx, r)
	}
	return all, nil
}
