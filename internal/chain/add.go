package chain

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/embedcni/cni/internal/plainfile"
)

// Part is a range of a chain's plugins, from From up to but not including To.
type Part struct {
	From, To int     // a To of 0 is the end
	Result   Partial // of the plugins before From, which have run
}

// Add attaches the container. If it fails, finished plugins stay attached until
// Del is called with the partial result. An attachment may be made in two steps:
// after the first part, the ADD must be completed with the rest, or deleted.
func (c *Chain) Add(ctx context.Context, a *Attachment, part Part) (result *types100.Result, partial Partial, err error) {
	part.To = cmp.Or(part.To, len(c.List.Plugins))
	x := &adding{c: c, a: a, env: c.env("ADD", a), last: json.RawMessage(part.Result), prev: json.RawMessage(part.Result)}
	err = guard(func() (err error) {
		result, err = x.run(ctx, part)
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

// run runs the plugins of a part, and caches the result after the last one.
func (x *adding) run(ctx context.Context, part Part) (*types100.Result, error) {
	var cache *plainfile.Unnamed
	caches := part.To == len(x.c.List.Plugins) && !x.c.Uncached
	if caches {
		if cache = x.c.CacheFile; cache == nil {
			cache = x.c.PrepareCache(x.a)
		}
		defer cache.Discard()
	}
	for i := part.From; i < part.To; i++ {
		err := x.add(ctx, i)
		if err == nil && i == part.To-1 && x.c.OnEnd != nil {
			err = x.c.OnEnd(ctx, "ADD")
		}
		if err != nil {
			return nil, fmt.Errorf("plugin %s failed (add): %w", describe(x.c.List.Plugins[i].Network), err)
		}
	}
	if caches {
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

// PrepareCache begins to make the file in which an ADD will cache its result. The caller
// discards it if there is none.
func (c *Chain) PrepareCache(a *Attachment) *plainfile.Unnamed { return c.cached(a).prepare() }

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
	last = withVersion(out.Stdout, c.List.CNIVersion)
	known, err := create.CreateFromBytes(last)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrInvalidResult, err)
	}
	prev, err = json.Marshal(known)
	return last, prev, err
}
