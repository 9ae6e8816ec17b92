package iptform

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"time"

	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/nft"
)

// Form writes the rules of the reference plugins. It adds them by the variant
// that the system has under the name iptables, and removes them from each variant
// that has them.
type Form struct {
	Sockets  nft.Sockets
	Held     *os.File                // open in all processes that it starts
	Kept     *Kept                   // dumps of earlier looks
	Siblings func() fwrules.Siblings // called only if they matter
	// Fact and Note read and write the attachment's record.
	Fact func(key string) json.RawMessage
	Note func(key string, value any) error

	fakes []tool // of tests: instead of the tools
}

// in runs fn on a thread in the namespace, where processes are started.
func (f Form) in(fn func() error) error { return nft.In(f.Sockets.NS, fn) }

// families are the rules of r for each family that has any.
func families(r fwrules.Rules) []desired {
	var all []desired
	for _, v6 := range []bool{false, true} {
		if w := desiredOf(r, v6); !w.empty() {
			all = append(all, w)
		}
	}
	return all
}

// Add makes the rules of both families, or none.
func (f Form) Add(ctx context.Context, r fwrules.Rules) error {
	return f.in(func() error { return f.addHere(ctx, r, false) })
}

// restore is Add for rules of which some exist: those that must precede others of the
// container's chain do so again.
func (f Form) restore(ctx context.Context, r fwrules.Rules) error {
	return f.in(func() error { return f.addHere(ctx, r, true) })
}

func (f Form) addHere(ctx context.Context, r fwrules.Rules, restores bool) error {
	var undo []func(context.Context) error
	err := sequence(families(r), func(w desired) error {
		x, err := f.attachmentsMaker(ctx, w.v6, true)
		if err != nil {
			return err
		}
		x.restores = restores
		mine := desired{v6: w.v6}
		undo = append(undo, func(ctx context.Context) error { return x.undo(ctx, w, mine) })
		return x.add(ctx, w, &mine)
	})
	if err == nil || restores { // what is restored may stay, and need not wait for the caller
		return err
	}
	// All of the rules or none must exist, even if the caller has gone.
	const enough = 10 * time.Second
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), enough)
	defer cancel()
	errs := []error{err}
	for _, undo := range undo {
		errs = append(errs, undo(ctx))
	}
	return errors.Join(errs...)
}

// sequence calls fn for each until one fails.
func sequence[T any](all []T, fn func(T) error) error {
	for _, one := range all {
		if err := fn(one); err != nil {
			return err
		}
	}
	return nil
}
