package chain

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/kernel/plainfile"
)

// Add attaches the container. If it fails, finished plugins stay attached until
// Del is called with the last result that a plugin has printed. The first plugin is given
// prev, the result of an attachment that the chain adds to, if there is one. See CNI
// specification 1.1.0, section 3, "Add an attachment".
func (c *Chain) Add(ctx context.Context, a *Attachment, prev Partial) (result *types100.Result, last Partial, err error) {
	last = prev
	given := c.previous(prev)
	var cache *plainfile.Unnamed
	if !c.Uncached {
		cache = c.cached(a).prepare()
		defer cache.Discard()
	}
	err = guard(func() (err error) {
		for i, p := range c.List.Plugins {
			last, given, err = c.add(ctx, i, a, last, given)
			if err == nil && i == len(c.List.Plugins)-1 && c.OnEnd != nil {
				err = c.OnEnd(ctx, "ADD")
			}
			if err != nil {
				return fmt.Errorf("plugin %s failed (add): %w", describe(p.Network), err)
			}
		}
		if !c.Uncached {
			if err := c.cached(a).write(json.RawMessage(given.encoded), cache); err != nil {
				return fmt.Errorf("failed to set network %q cached result: %w", c.List.Name, err)
			}
		}
		if result, err = given.decoded(); err != nil {
			return fmt.Errorf("%w: %w", ErrInvalidResult, err)
		}
		return nil
	})
	return result, last, err
}

// add runs one plugin. It returns the result so far, as printed, and as given to the next
// plugin: like libcni, with those fields only that the result's version knows.
func (c *Chain) add(ctx context.Context, position int, a *Attachment, last Partial, given previous) (Partial, previous, error) {
	call, err := c.call("ADD", position, a, given)
	if err != nil {
		return last, given, err
	}
	out, err := c.Run(ctx, call)
	if err != nil {
		return last, given, err
	}
	printed, next := out.Stdout, out.Stdout
	if !out.Valid {
		var known types.Result
		if printed, known, err = readResult(out.Stdout, c.List.CNIVersion); err == nil {
			next, err = json.Marshal(known)
		}
		if err != nil {
			return last, given, &ResultError{Plugin: call.Plugin, Err: err}
		}
	}
	if !bytes.Equal(next, given.encoded) { // else it is decoded
		given = c.previous(next)
	}
	if c.OnResult != nil {
		err = c.OnResult(printed)
	}
	return printed, given, err
}
