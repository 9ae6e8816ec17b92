package health

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/container"
	"github.com/embedcni/cni/internal/runner"
	"github.com/embedcni/cni/internal/views"
)

// Attachment is an attachment that is compared with its record.
type Attachment struct {
	*chain.Attachment
	Chain         *chain.Chain  // of its plugins, of which none runs
	Result        chain.Partial // of the ADD; nil if it is not known
	Runner        *runner.Runner
	MadeInterface bool                            // the ADD has made an interface in the container
	Describe      func(compare.Difference) string // a line for people
}

// Compare compares the parts of the attachment's plugins with the kernel, by those
// built-in plugins that can. It changes nothing. The error is the reason why nothing
// could be compared; the Part then has the names alone.
func (a *Attachment) Compare(ctx context.Context, v *views.View) (*Part, error) {
	p := &Part{Network: a.Chain.List.Name, IfName: a.IfName}
	gone, err := a.missing(v)
	if err != nil {
		return p, err
	}
	if gone != nil {
		p.Differences = append(p.Differences, *gone)
	}
	p.Asks = make(map[int]bool)
	r := *a.Runner
	r.Given.Record = readOnly{r.Given.Record}
	calls := a.Chain.CheckCalls(a.Attachment, a.Result)
	for i, plugin := range a.Chain.List.Plugins {
		call, unknown := calls(i)
		types := []string{plugin.Network.Type}
		if plugin.Network.IPAM.Type != "" {
			types = append(types, plugin.Network.IPAM.Type)
		}
		for n, typ := range types {
			p.Asks[i] = p.Asks[i] || gone == nil && !r.IsOurs(typ)
			if !a.compareOne(ctx, &r, v, typ, p, call, unknown) {
				// The configuration that a plugin of another program passes to its IPAM
				// plugin is not known either.
				if p.Asks[i] = gone == nil; gone == nil {
					p.Uncompared = append(p.Uncompared, types[n:]...)
				}
				break
			}
		}
	}
	return p, nil
}

// needsAnADD is why an interface in a container is not repaired.
const needsAnADD = "only an ADD makes it, and the specification requires a DEL before that: Remove and Setup attach the container again"

// missing returns the difference if the container lacks the attachment's interface.
func (a *Attachment) missing(v *views.View) (*compare.Difference, error) {
	if !a.MadeInterface { // an interface that was never made cannot be missing
		return nil, nil
	}
	there, err := v.HasLink(a.IfName)
	if there || err != nil {
		return nil, err
	}
	return &compare.Difference{
		Plugin: a.Chain.List.Plugins[0].Network.Type, Kind: compare.Interface, Inside: true, Object: a.IfName, Why: needsAnADD,
		Err: fmt.Errorf("interface %s of network %q is gone: %w", a.IfName, a.Chain.List.Name, container.ErrNotAttached),
	}, nil
}

// isInterface reports whether a difference is that the container lacks an interface.
func isInterface(d compare.Difference, ifName string) bool {
	return d.Kind == compare.Interface && d.Inside && d.Object == ifName && d.Found == ""
}

// compareOne compares the part of one plugin by its call for CHECK, unless err is why there
// is none. It reports whether a built-in plugin could.
func (a *Attachment) compareOne(ctx context.Context, r *runner.Runner, v *views.View, typ string, p *Part, call chain.Call, err error) bool {
	if !a.Chain.ListsInterfaces() {
		return false // the result does not say what to compare
	}
	var found []compare.Difference
	ok := true
	if err == nil {
		call.Plugin = typ
		found, ok, err = r.Compare(ctx, call, v)
	}
	if err != nil {
		p.fail(r.Different(typ, fmt.Errorf("not compared: %w", err)))
	}
	for _, d := range found {
		if isInterface(d, a.IfName) && len(p.Differences) > 0 && isInterface(p.Differences[0], a.IfName) {
			continue // missing has found it
		}
		if d.Err == nil { // CHECK passes over it
			p.settings++
			d.Err = errors.New(a.Describe(d))
		}
		d.Err = r.Different(typ, d.Err)
		p.Differences = append(p.Differences, d)
	}
	return ok
}

// fail notes why a part could not be compared. A single error stays as it is.
func (p *Part) fail(err error) {
	if p.Err != nil {
		err = errors.Join(p.Err, err)
	}
	p.Err = err
}

// errReadOnly: a comparison changes nothing.
var errReadOnly = errors.New("a comparison notes nothing")

// readOnly is a record for a comparison, which must not change it.
type readOnly struct{ caller.Record }

// Note refuses a note.
func (readOnly) Note(string, any) error { return errReadOnly }

// Claim does nothing.
func (readOnly) Claim(netip.Addr) {}
