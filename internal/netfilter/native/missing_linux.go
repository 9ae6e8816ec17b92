package native

import (
	"context"
	"errors"
	"fmt"

	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/nft"
)

// Table is the content of the tables at one time: all elements, or those with some keys. It
// is safe for concurrent use.
type Table struct {
	layout   layout
	elements map[elementKey]element
	broken   map[nft.Table]error // names the first part that is missing whatever the elements are
	Steady   bool                // all of it is of one generation; else something may be missing from it
}

// lacks returns an error that names the first of the sets, chains and rules that is
// missing for elements in the sets.
func (t *Table) lacks(sets []string) error {
	for _, name := range sets {
		if err := t.broken[tableOf(name)]; err != nil {
			return err
		}
		if !t.layout.sets[name] { // else it has its rule
			return fmt.Errorf("set %v %s is missing", tableOf(name), name)
		}
	}
	return nil
}

// Look reads the elements that can be those of the rules.
func (f Form) Look(ctx context.Context, r fwrules.Rules) (t *Table, err error) {
	var wanted []element
	for _, part := range r.Parts() {
		if some, err := elementsOf(part.Rules); err == nil { // else MissingIn says why there are none
			wanted = append(wanted, some...)
		}
	}
	err = f.Sockets.Do(ctx, func(c *nft.Conn) error {
		return nft.UntilUnchanged(ctx, func() error {
			t, err = look(c, tablesOf(setsOf(wanted)), wanted, func(layout) []string { return nil })
			return err
		})
	})
	return t, err
}

// look reads the elements with the keys, and all of the sets, and what the tables have for
// them. It fails with [nft.ErrChanged] unless all is of one generation; then the Table may
// lack something.
func look(c *nft.Conn, tables []nft.Table, keys []element, sets func(layout) []string) (*Table, error) {
	t := &Table{broken: make(map[nft.Table]error)}
	err := c.InOneGeneration(func() (changed error) {
		if t.layout, changed = readLayout(c, tables); changed != nil && !errors.Is(changed, nft.ErrChanged) {
			return changed
		}
		found, err := elementsOn(c, keys, sets(t.layout))
		t.elements = byKey(found)
		for _, of := range tables {
			_, t.broken[of] = t.layout.missing(of, nil)
		}
		return errors.Join(changed, err)
	})
	t.Steady = err == nil
	return t, wrapNFT(err)
}

// Read reads the tables. It reads them again if they change meanwhile, a few times.
func (f Form) Read(ctx context.Context) (t *Table, err error) {
	err = f.Sockets.Do(ctx, func(c *nft.Conn) error {
		return nft.Repeat(ctx, nft.MostReads, func() error {
			t, err = look(c, tables(), nil, layout.kinds)
			return err
		})
	})
	if errors.Is(err, nft.ErrChanged) {
		err = nil
	}
	return t, err
}

// MissingIn returns the parts of the rules that the table does not have. Of an element
// without the sets, chains and rules that it needs, the part is missing too. The Form may
// be that of another attachment than the one that has read the table.
func (f Form) MissingIn(ctx context.Context, t *Table, r fwrules.Rules) (all []fwrules.Missing, err error) {
	if _, err := elementsOf(r); err != nil {
		return nil, err
	}
	for _, part := range r.Parts() {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		wanted, err := elementsOf(part.Rules)
		if err != nil {
			return nil, err
		}
		if found, err := f.absent(wanted, t); err != nil {
			all = append(all, fwrules.Missing{
				Rules: part.Rules, Object: part.Object, Found: found, Err: fwrules.AsMissing(err),
			})
		}
	}
	return all, nil
}

// absent returns an error that names the first of the elements that is missing, or
// the first part of the layout that it needs. found is the first element that is
// in the place of one.
func (f Form) absent(wanted []element, t *Table) (found string, err error) {
	if len(wanted) == 0 {
		return "", nil
	}
	if err = t.lacks(setsOf(wanted)); err != nil {
		err = fmt.Errorf("nftables: %w", err)
	}
	first := func(text string, e error) {
		if err == nil {
			err = e
		}
		if found == "" {
			found = text
		}
	}
	for _, e := range wanted {
		there, ok := t.elements[keyOf(e)]
		switch {
		case !ok:
			first("", fmt.Errorf("nftables: %v is missing", elementText(e)))
		case there != e && !(isPort(e) && f.Siblings().Have(there.Comment)):
			text := elementText(there)
			first(text.String(), fmt.Errorf("nftables: %v is missing, there is %v", elementText(e), text))
		}
	}
	return found, err
}

// Restoring is the rules of an attachment that are to be restored. Siblings is that of a
// Form for the attachment.
type Restoring struct {
	Siblings func() fwrules.Siblings
	Rules    fwrules.Rules
}

// Restore adds the missing elements of attachments, and the part of the layout that they
// need, all or none. It replaces nothing: if another element is in the way, the
// error is a [fwrules.ErrInPlace] or [fwrules.ErrHostPortTaken].
func (f Form) Restore(ctx context.Context, all []Restoring) error {
	var wanted []element
	siblings := make(map[elementKey]func() fwrules.Siblings)
	for _, one := range all {
		some, err := elementsOf(one.Rules)
		if err != nil {
			return err
		}
		wanted = append(wanted, some...)
		for _, e := range some {
			siblings[keyOf(e)] = one.Siblings
		}
	}
	wanted, err := once(wanted)
	if err != nil || len(wanted) == 0 {
		return err
	}
	have := func(e element, comment string) bool { return siblings[keyOf(e)]().Have(comment) }
	return f.Sockets.Do(ctx, func(c *nft.Conn) error { return addMissing(ctx, c, wanted, nil, have) })
}
