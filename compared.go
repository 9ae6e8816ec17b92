package cni

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/runner"
	"github.com/embedcni/cni/internal/views"
)

// compared is an attachment compared with its record.
type compared struct {
	network, ifName string

	differences []compare.Difference // in the order in which they have to be made again
	settings    int                  // how many of them are settings of the host, which CHECK passes over
	asks        map[int]bool         // positions of the plugins whose CHECK can say more
	uncompared  []string             // types whose part nothing compares
	err         error                // why a part could not be compared

	asked asked
}

// clean reports whether the comparison has found nothing wrong.
func (c *compared) clean() bool { return len(c.differences) == 0 && c.err == nil }

// lacks reports whether something that the Setup has made is missing or different. A
// setting of the host is not: it concerns all containers at once, and nobody is the
// better for their removal.
func (c *compared) lacks() bool { return len(c.differences) > c.settings }

// compare compares the parts of the attachment's plugins with the kernel, by those
// built-in plugins that can. It changes nothing.
func (a *attachment) compare(ctx context.Context, v *views.View) *compared {
	c := &compared{network: a.network.config.Name, ifName: a.IfName, asks: make(map[int]bool)}
	gone, err := a.missing(v)
	if err != nil {
		c.err = a.errors("CHECK", err)
		return c
	}
	if gone != nil {
		c.differences = append(c.differences, *gone)
	}
	r := a.comparing()
	for i, p := range a.network.config.Plugins {
		types := []string{p.Network.Type}
		if p.Network.IPAM.Type != "" {
			types = append(types, p.Network.IPAM.Type)
		}
		for n, typ := range types {
			c.asks[i] = c.asks[i] || gone == nil && !r.IsOurs(typ)
			if !a.comparePart(ctx, r, v, i, typ, c) {
				// The configuration that a plugin of another program passes to its IPAM
				// plugin is not known either.
				if c.asks[i] = gone == nil; gone == nil {
					c.uncompared = append(c.uncompared, types[n:]...)
				}
				break
			}
		}
	}
	return c
}

// needsAnADD is why an interface in a container is not repaired.
const needsAnADD = "only an ADD makes it, and the specification requires a DEL before that: Remove and Setup attach the container again"

// missing returns the difference if the container lacks the attachment's interface.
func (a *attachment) missing(v *views.View) (*compare.Difference, error) {
	if !a.described().MadeInterface() { // an interface that was never made cannot be missing
		return nil, nil
	}
	there, err := v.HasLink(a.IfName)
	if there || err != nil {
		return nil, err
	}
	return &compare.Difference{
		Plugin: a.network.first(), Kind: compare.Interface, Inside: true, Object: a.IfName, Why: needsAnADD,
		Err: fmt.Errorf("interface %s of network %q is gone: %w", a.IfName, a.network.config.Name, ErrNotAttached),
	}, nil
}

// isInterface reports whether a difference is that the container lacks an interface.
func isInterface(d compare.Difference, ifName string) bool {
	return d.Kind == compare.Interface && d.Inside && d.Object == ifName && d.Found == ""
}

// result returns the result of the ADD, or nil if it is not known.
func (a *attachment) result() chain.Partial {
	if a.partial == nil {
		return a.cached().Result()
	}
	return a.partial
}

// comparing returns the runner for a comparison, which must not change the record.
func (a *attachment) comparing() *runner.Runner {
	r := a.runner()
	r.Given.Record = readOnly{hooks{a}}
	return r
}

// comparePart compares the part of one plugin. It reports whether a built-in plugin
// could.
func (a *attachment) comparePart(ctx context.Context, r *runner.Runner, v *views.View, position int, typ string, c *compared) bool {
	list := &chain.Chain{List: a.network.config, Path: a.op.pluginDirs}
	if !list.ListsInterfaces() {
		return false // the result does not say what to compare
	}
	call, err := list.CheckCall(position, &a.Attachment, a.result())
	var found []compare.Difference
	ok := true
	if err == nil {
		call.Plugin = typ
		found, ok, err = r.Compare(ctx, call, v)
	}
	if err != nil {
		c.err = join(c.err, r.Different(typ, fmt.Errorf("not compared: %w", err)))
	}
	for _, d := range found {
		if isInterface(d, a.IfName) && len(c.differences) > 0 && isInterface(c.differences[0], a.IfName) {
			continue // missing has found it
		}
		if d.Err == nil { // CHECK passes over it
			c.settings++
			d.Err = errors.New(differenceOf(c.network, c.ifName, d).String())
		}
		d.Err = r.Different(typ, d.Err)
		c.differences = append(c.differences, d)
	}
	return ok
}

// errReadOnly: a comparison changes nothing.
var errReadOnly = errors.New("a comparison notes nothing")

// readOnly are hooks without notes.
type readOnly struct{ hooks }

// Append refuses an entry.
func (readOnly) Append(record.Entry) error { return errReadOnly }

// Note refuses a note.
func (readOnly) Note(string, any) error { return errReadOnly }

// Claim does nothing.
func (readOnly) Claim(string, netip.Addr) {}
