package netfilter

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/embedcni/cni/internal/kernel/iptables"
	"github.com/embedcni/cni/internal/kernel/nft"
)

// Missing returns those of the rules that have no effect, in their order: they exist in none
// of the forms, or no rule leads to them. An error means that the rules cannot be read.
func (fw *Firewalls) Missing(ctx context.Context, rules ...Rule) ([]Missing, error) {
	if fw.snapshot != nil {
		all, err := fw.snapshot.missing(ctx, fw, rules)
		if err != nil || len(all) == 0 || !fw.snapshot.torn.Load() {
			return all, err
		}
	}
	return (&snapshot{fw: fw, only: rules}).missing(ctx, fw, rules)
}

// Snapshot returns fw with the rules of the namespace as they are now, each form read once,
// when it is first asked for. Comparing the rules of one attachment with it costs the same
// for any number of attachments. It is safe for concurrent use.
//
// Rules that it has exist. If it lacks some, because they changed while it was read, it
// asks the kernel: its answers are those of [Firewalls.Missing] at the time when it was
// read, or later.
func (fw *Firewalls) Snapshot() *Firewalls {
	return &Firewalls{fw.Options, fw.sockets, &snapshot{fw: fw}}
}

// For returns the same snapshot for another attachment, of which o has the siblings
// and notes.
func (fw *Firewalls) For(o Options) *Firewalls {
	one := Open(fw.sockets.NS, o)
	one.snapshot = fw.snapshot
	return one
}

// missing returns those of the rules of fw's attachment that have no effect in the snapshot.
func (s *snapshot) missing(ctx context.Context, fw *Firewalls, rules []Rule) (all []Missing, err error) {
	for _, r := range rules {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		m, err := s.missingOwn(ctx, fw, r)
		if err == nil && m.Err != nil {
			err = s.missingReference(ctx, fw, &m)
		}
		if err != nil {
			return nil, err
		}
		if m.Err != nil {
			all = append(all, m)
		}
	}
	return all, nil
}

// missingOwn looks for this module's own form of a rule. It is there if the result has no
// Err.
func (s *snapshot) missingOwn(ctx context.Context, fw *Firewalls, r Rule) (m Missing, err error) {
	m.Rule = r
	if r.Kind == Accept {
		now, err := s.readForwarding(ctx)
		if err == nil {
			own, _ := fw.accepts() // Add and Restore return the error
			m.Err = own.missing(now, r)
		}
		return m, err
	}
	wanted, err := elementsOf([]Rule{r})
	if errors.Is(err, ErrOnlyExecutable) {
		m.Err, m.Why = err, "only the plugin's executable makes rules with conditions: Remove and Setup attach the container again"
		return m, nil
	}
	if err != nil || len(wanted) == 0 {
		return m, err
	}
	now, err := s.readState(ctx)
	if err == nil {
		m.Found, m.Err = now.absent(wanted, fw.Siblings)
	}
	return m, err
}

// missingReference looks for the reference plugins' form of a rule, where this module's own
// are missing.
func (s *snapshot) missingReference(ctx context.Context, fw *Firewalls, m *Missing) error {
	seen, err := s.readReference(ctx)
	if err != nil {
		return err
	}
	missing, err := seen.lacks(m.Rule)
	switch {
	case err != nil:
		return err
	case missing == nil:
		m.Err = nil
	case fw.Executable:
		m.Err = fmt.Errorf("the rules are there in no form: %w; %w", m.Err, missing)
	}
	return nil
}

// snapshot is the rules of a namespace. It owns each form as it was when it was first asked
// for, and read once.
type snapshot struct {
	fw   *Firewalls // by which it reads
	only []Rule     // of which this module's own are read; nil: all

	own        once[*state]
	forwarding once[[]forwarding]
	reference  once[reference]
	torn       atomic.Bool // rules changed while they were read, so that something may be missing
}

// readState reads this module's tables.
func (s *snapshot) readState(ctx context.Context) (*state, error) {
	return s.own.do(ctx, func(ctx context.Context) (now *state, err error) {
		q, tries := query{tables: tables(), whole: tables(), layout: true}, nft.MostReads
		if s.only != nil {
			q, tries = query{layout: true}, nft.MostChanges
			for _, r := range s.only {
				if some, err := elementsOf([]Rule{r}); err == nil { // else missingOwn says why there are none
					q.keys = append(q.keys, some...)
				}
			}
			q.tables = tablesOf(q.keys)
		}
		err = s.fw.sockets.Do(ctx, func(c *nft.Conn) error {
			return wrapNFT(c.Look(ctx, tries, func() (err error) {
				now, err = q.read(c)
				return err
			}))
		})
		if errors.Is(err, nft.ErrChanged) && s.only == nil {
			s.torn.Store(true)
			err = nil
		}
		return now, err
	})
}

// readForwarding reads the chains of all variants and families.
func (s *snapshot) readForwarding(ctx context.Context) ([]forwarding, error) {
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

// readReference reads the reference plugins' rules.
func (s *snapshot) readReference(ctx context.Context) (reference, error) {
	return s.reference.do(ctx, func(ctx context.Context) (reference, error) {
		now, err := readReference(ctx, s.fw.sockets, iptables.Variants(s.fw.sockets, s.fw.Held))
		if errors.Is(err, nft.ErrChanged) {
			s.torn.Store(true)
			err = nil
		}
		return now, err
	})
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
