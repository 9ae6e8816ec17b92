package netfilter

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/netfilter/native"
	"github.com/embedcni/cni/internal/netfilter/reference"
)

// Missing returns the parts of the rules that have no effect, in the order of the rules:
// they exist in none of the forms, or no rule leads to them. An error means that the rules
// cannot be read.
func (fw *Firewalls) Missing(ctx context.Context, r fwrules.Rules) ([]fwrules.Missing, error) {
	return fw.missing(ctx, r, &sight{fw: fw, only: &r})
}

// missing looks first for this module's own rules, and for the reference plugins' only
// where these are missing.
func (fw *Firewalls) missing(ctx context.Context, r fwrules.Rules, in *sight) (all []fwrules.Missing, err error) {
	for _, part := range r.Parts() {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		lost, err := fw.missingPart(ctx, part, in)
		if err != nil {
			return nil, err
		}
		all = append(all, lost...)
	}
	return all, nil
}

// missingPart returns the part unless it is there.
func (fw *Firewalls) missingPart(ctx context.Context, part fwrules.Part, in *sight) ([]fwrules.Missing, error) {
	all, err := fw.missingOwn(ctx, part, in)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	theirs, err := in.readReference(ctx)
	if err != nil {
		return nil, err
	}
	switch err := theirs.Has(part); {
	case err == nil:
		return nil, nil
	case !errors.Is(err, fwrules.ErrMissing):
		return nil, err
	default:
		if fw.Executable {
			all[0].Err = fwrules.AsMissing(fmt.Errorf("the rules are there in no form: %w; %w", all[0].Err, err))
		}
	}
	return all, nil
}

// missingOwn looks for this module's own rules of a part.
func (fw *Firewalls) missingOwn(ctx context.Context, part fwrules.Part, in *sight) ([]fwrules.Missing, error) {
	m := fwrules.Missing{Rules: part.Rules, Object: part.Object}
	if f := part.Rules.Forward; len(f) == 1 && !f[0].IngressOnly {
		now, err := in.readForwarding(ctx)
		if err != nil {
			return nil, err
		}
		if err = fw.missingForward(now, f[0]); err == nil {
			return nil, nil
		}
		m.Err = fwrules.AsMissing(err)
		return []fwrules.Missing{m}, nil
	}
	all, err := in.missingNative(ctx, fw, part.Rules)
	if errors.Is(err, fwrules.ErrOnlyExecutable) {
		m.Err, m.Why = err, "only the plugin's executable makes rules with conditions: Remove and Setup attach the container again"
		return []fwrules.Missing{m}, nil
	}
	return all, err
}

// sight is the rules of a namespace, each form read once, when it is first asked for.
type sight struct {
	fw   *Firewalls
	only *fwrules.Rules // of which this module's own are read; nil: all

	native     once[*native.Table]
	forwarding once[[]forwarding]
	reference  once[*reference.Sight]
}

// missingNative returns the parts that this module's table lacks, for fw's attachment. If
// the table changed while it was read, it asks the kernel.
func (s *sight) missingNative(ctx context.Context, fw *Firewalls, r fwrules.Rules) ([]fwrules.Missing, error) {
	t, err := s.native.do(ctx, func(ctx context.Context) (*native.Table, error) {
		if s.only != nil {
			return s.fw.native.Look(ctx, *s.only)
		}
		return s.fw.native.Read(ctx)
	})
	if err != nil {
		return nil, err
	}
	all, err := fw.native.MissingIn(ctx, t, r)
	if err == nil && len(all) > 0 && !t.Steady {
		if t, err = fw.native.Look(ctx, r); err == nil {
			all, err = fw.native.MissingIn(ctx, t, r)
		}
	}
	return all, err
}

// readForwarding reads the chains of all variants and families.
func (s *sight) readForwarding(ctx context.Context) ([]forwarding, error) {
	return s.forwarding.do(ctx, func(ctx context.Context) (all []forwarding, err error) {
		for _, tool := range iptables.Variants(s.fw.sockets, s.fw.Held) {
			now, err := readForwarding(ctx, tool)
			if err != nil {
				return nil, err
			}
			all = append(all, now)
		}
		return all, nil
	})
}

func (s *sight) readReference(ctx context.Context) (*reference.Sight, error) {
	return s.reference.do(ctx, s.fw.reference.Read)
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
