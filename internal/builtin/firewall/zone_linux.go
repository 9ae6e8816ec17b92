package firewall

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/embedcni/cni/internal/kernel/firewalld"
	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/run/contract"
)

// This file corresponds to firewalld.go of the reference plugin. That plugin
// adds without looking first, and ignores errors when it deletes.

// enterZone adds the addresses to the zone. Before it adds any, it notes the
// addresses that are in the zone and belong to no attachment on record, so that
// DEL leaves them.
func (w work) enterZone(ctx context.Context) error {
	err := w.given.Bus.Do(ctx, w.request.Host, func(c *firewalld.Conn) error {
		found, missing, err := w.look(c)
		if err == nil {
			err = w.note(found, missing)
		}
		for _, addr := range missing {
			if err == nil {
				_, err = c.Add(w.zone(), addr)
			}
		}
		return err
	})
	if errors.Is(err, firewalld.ErrNotRunning) {
		err = fmt.Errorf(`%w; start firewalld, or set "backend" to "iptables"`, err)
	}
	return err
}

// look returns which of the addresses are in the zone, and which are not.
func (w work) look(c *firewalld.Conn) (found, missing []netip.Addr, err error) {
	for _, p := range w.addrs {
		has, err := c.Has(w.zone(), p.Addr())
		switch {
		case err != nil:
			return nil, nil, err
		case has:
			found = append(found, p.Addr())
		default:
			missing = append(missing, p.Addr())
		}
	}
	return found, missing, nil
}

// note notes which addresses were in the zone. An address that another
// attachment on record has is not foreign: DEL removes it.
func (w work) note(found, missing []netip.Addr) error {
	before, err := firewalld.Recall(w.given.Record)
	if err != nil {
		return err
	}
	var others []netip.Addr
	if len(found) > 0 {
		if others, err = w.given.Record.InUse(); err != nil {
			return fmt.Errorf("find the owners of the addresses %v, which are in zone %q of firewalld: %w", found, w.zone(), err)
		}
	}
	for _, addr := range found {
		before.Found(w.zone(), addr, !slices.Contains(others, addr))
	}
	for _, addr := range missing {
		before.Found(w.zone(), addr, false)
	}
	return before.Note(w.given.Record)
}

// leaveZone removes the addresses from the zone, except the foreign ones.
// Without a running firewalld there is nothing to do: it keeps sources only
// while it runs.
func (w work) leaveZone(ctx context.Context) error {
	before, err := firewalld.Recall(w.given.Record)
	if err != nil {
		return err
	}
	var errs []error
	err = w.given.Bus.Do(ctx, w.request.Host, func(c *firewalld.Conn) error {
		for _, p := range w.addrs {
			if !before.Foreign(w.zone(), p.Addr()) {
				errs = append(errs, c.Remove(w.zone(), p.Addr()))
			}
		}
		return joined.Errors(errs...)
	})
	if errors.Is(err, firewalld.ErrNotRunning) {
		return nil
	}
	return err
}

// compareZone returns the addresses that are not in the zone. The reference plugin
// asks too, but ignores the answer.
func (w work) compareZone(ctx context.Context) (found []contract.Difference, err error) {
	err = w.given.Bus.Do(ctx, w.request.Host, func(c *firewalld.Conn) error {
		_, missing, err := w.look(c)
		for _, addr := range missing {
			d := contract.Difference{
				Kind: contract.Zone, Object: firewalld.Source(addr), Wanted: w.zone(),
				Err: fmt.Errorf("%s is not in zone %[2]q of firewalld, which may drop its packets; "+
					"firewalld has forgotten it if it was reloaded or restarted: firewall-cmd --zone=%[2]s --add-source=%[1]s puts it back",
					firewalld.Source(addr), w.zone()),
			}
			if d.Found, err = c.ZoneOf(addr); err != nil {
				return err
			}
			if d.Found != "" {
				d.Why = "somebody has put the address into another zone"
			} else {
				d.Fix = func(ctx context.Context) error { // as Add does
					one := w
					one.given = contract.From(ctx)
					one.addrs = []netip.Prefix{netip.PrefixFrom(addr, addr.BitLen())}
					return one.enterZone(ctx)
				}
			}
			found = append(found, d)
		}
		return err
	})
	return found, err
}
