package chain

import (
	"context"
	"encoding/json"
	"fmt"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/plainfile"
)

// Add attaches the container. If it fails, finished plugins stay attached until
// Del is called with the last result that a plugin has printed. The first plugin is given
// prev, the result of an attachment that the chain adds to, if there is one. See CNI
// specification 1.1.0, section 3, "Add an attachment".
func (c *Chain) Add(ctx context.Context, a *Attachment, prev Partial) (result *types100.Result, last Partial, err error) {
	last = prev
	var cache *plainfile.Unnamed
	if !c.Uncached {
		cache = c.cached(a).prepare()
		defer cache.Discard()
	}
	err = guard(func() (err error) {
		for i, p := range c.List.Plugins {
			last, prev, err = c.add(ctx, i, a, last, prev)
			if err == nil && i == len(c.List.Plugins)-1 && c.OnEnd != nil {
				err = c.OnEnd(ctx, "ADD")
			}
			if err != nil {
				return fmt.Errorf("plugin %s failed (add): %w", describe(p.Network), err)
			}
		}
		if !c.Uncached {
			if err := c.cached(a).write(json.RawMessage(prev), cache); err != nil {
				return fmt.Errorf("failed to set network %q cached result: %w", c.List.Name, err)
			}
		}
		if result, err = decode(json.RawMessage(prev)); err != nil {
			return fmt.Errorf("%w: %w", ErrInvalidResult, err)
		}
		return nil
	})
	return result, last, err
}

// add runs one plugin. It returns the result so far, as printed, and as given to the next
// plugin: like libcni, with those fields only that the result's version knows.
func (c *Chain) add(ctx context.Context, position int, a *Attachment, last, prev Partial) (_, _ Partial, err error) {
	call, err := c.call("ADD", position, a, c.previous(prev))
	if err != nil {
		return last, prev, err
	}
	out, err := c.Run(ctx, call)
	if err != nil {
		return last, prev, err
	}
	if out.Valid {
		last, prev = out.Stdout, out.Stdout
	} else {
		printed, known, err := readResult(out.Stdout, c.List.CNIVersion)
		var given []byte
		if err == nil {
			given, err = json.Marshal(known)
		}
		if err != nil {
			return last, prev, &ResultError{Plugin: call.Plugin, Err: err}
		}
		last, prev = Partial(printed), given
	}
	if c.OnResult == nil {
		return last, prev, nil
	}
	return last, prev, c.OnResult(json.RawMessage(last))
}
