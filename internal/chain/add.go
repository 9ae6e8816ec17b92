package chain

import (
	"context"
	"encoding/json"
	"fmt"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/embedcni/cni/internal/plainfile"
)

// Add attaches the container. If it fails, finished plugins stay attached until
// Del is called with the partial result. The first plugin is given prev, the result of
// an attachment that the chain adds to, if there is one.
func (c *Chain) Add(ctx context.Context, a *Attachment, prev Partial) (result *types100.Result, partial Partial, err error) {
	x := &adding{c: c, a: a, env: c.env("ADD", a), last: json.RawMessage(prev), prev: json.RawMessage(prev)}
	err = guard(func() (err error) {
		result, err = x.run(ctx)
		return err
	})
	return result, Partial(x.last), err
}

// adding is an ADD in progress (CNI specification 1.1.0, section 3, "Add an
// attachment").
type adding struct {
	c    *Chain
	a    *Attachment
	env  []string
	last json.RawMessage // the result so far, as printed
	prev json.RawMessage // the same, as given to the next plugin
}

// run runs the plugins, and caches the result after the last one.
func (x *adding) run(ctx context.Context) (*types100.Result, error) {
	var cache *plainfile.Unnamed
	if !x.c.Uncached {
		cache = x.c.cached(x.a).prepare()
		defer cache.Discard()
	}
	for i, p := range x.c.List.Plugins {
		err := x.add(ctx, i)
		if err == nil && i == len(x.c.List.Plugins)-1 && x.c.OnEnd != nil {
			err = x.c.OnEnd(ctx, "ADD")
		}
		if err != nil {
			return nil, fmt.Errorf("plugin %s failed (add): %w", describe(p.Network), err)
		}
	}
	if !x.c.Uncached {
		if err := x.c.cached(x.a).write(x.prev, cache); err != nil {
			return nil, fmt.Errorf("failed to set network %q cached result: %w", x.c.List.Name, err)
		}
	}
	r, err := decodeResult(x.prev)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidResult, err)
	}
	result, err := types100.NewResultFromResult(r)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidResult, err)
	}
	return result, nil
}

// add runs one plugin.
func (x *adding) add(ctx context.Context, position int) error {
	request, err := x.c.request(position, x.a, prevResult(Partial(x.prev))...)
	if err != nil {
		return err
	}
	plugin := x.c.List.Plugins[position].Network.Type
	out, err := x.c.Run(ctx, Call{Verb: "ADD", Plugin: plugin, Stdin: request, Env: x.env})
	if err != nil {
		return err
	}
	last, prev, err := x.c.added(out)
	if err != nil {
		return &ResultError{Plugin: plugin, Err: err}
	}
	x.last, x.prev = last, prev
	if x.c.OnResult == nil {
		return nil
	}
	return x.c.OnResult(x.last)
}

// added takes the result of a successful plugin. As in libcni, the next plugin
// gets only the fields that the result's version knows.
func (c *Chain) added(out Output) (last, prev json.RawMessage, err error) {
	if out.Valid {
		return out.Stdout, out.Stdout, nil
	}
	if err := ValidateResult(out.Stdout, c.List.CNIVersion); err != nil {
		return nil, nil, err
	}
	if last, err = withVersion(out.Stdout, c.List.CNIVersion); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrInvalidResult, err)
	}
	known, err := create.CreateFromBytes(last)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrInvalidResult, err)
	}
	prev, err = json.Marshal(known)
	return last, prev, err
}
