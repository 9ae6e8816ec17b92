package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/embedcni/cni/internal/firewalld"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/sweep"
	"github.com/embedcni/cni/netns"
)

// The plugin firewall adds a container's addresses to a zone of firewalld, if
// firewalld runs or the configuration names it as the backend. There is one
// firewalld for all network namespaces, and a zone does not record whose an address
// is.

// zoned is an address in a zone of firewalld.
type zoned struct {
	zone string
	addr netip.Addr
}

// firewallConf has the fields about firewalld in the configuration of the plugin
// firewall.
type firewallConf struct {
	Type    string          `json:"type"`
	Backend json.RawMessage `json:"backend"`
	Zone    json.RawMessage `json:"firewalldZone"`
}

// zones returns the zones of firewalld that the attachment's plugins may have used.
// certain reports whether a plugin uses firewalld for certain, if its ADD got that
// far. An executable whose configuration names no backend does not report the one
// that it has chosen.
func (a *attachment) zones() (zones []string, certain bool) {
	if a.isCallers(known.Firewall) {
		return nil, false
	}
	var configs []json.RawMessage
	for _, p := range a.network.config.Plugins {
		configs = append(configs, p.Bytes)
	}
	ran, _, _ := a.kinds.get(known.Firewall)
	return zonesOf(configs, ran.Plugin)
}

// isZoned reports whether a recorded attachment may have addresses in a zone.
func isZoned(n *record.Network) bool {
	var list struct {
		Plugins []json.RawMessage `json:"plugins"`
	}
	if json.Unmarshal(n.Config, &list) != nil {
		return true // unknown
	}
	var ran record.Plugin
	for _, p := range n.Plugins {
		if p.Type == known.Firewall {
			ran = p
		}
	}
	zones, _ := zonesOf(list.Plugins, ran)
	return len(zones) > 0
}

// zonesOf is zones for plugins with these configurations. ran is the record of the
// plugin firewall.
func zonesOf(configs []json.RawMessage, ran record.Plugin) (zones []string, certain bool) {
	for _, config := range configs {
		var c firewallConf
		if err := json.Unmarshal(config, &c); err != nil || c.Type != known.Firewall {
			continue // footprint returns the error
		}
		used := false // for certain
		switch backend := text(c.Backend); {
		case backend == "iptables":
			continue
		case backend == "firewalld":
			used = true
		case ran.Kind == string(PluginBuiltIn) && ran.Backend != "":
			if used = ran.Backend == netfilter.DetectedFirewalld; !used {
				continue
			}
		}
		zone := text(c.Zone)
		if zone == "" {
			zone = firewalld.DefaultZone
		}
		zones = append(zones, zone)
		certain = certain || used
	}
	return zones, certain
}

// text returns the value of a field that is a string, and else "".
func text(field json.RawMessage) string {
	var s string
	if json.Unmarshal(field, &s) != nil {
		return "" // the plugin refuses it
	}
	return s
}

// isZoned reports whether a DEL certainly removes the addresses from a zone.
func (a *attachment) isZoned() bool {
	_, certain := a.zones()
	return certain
}

// aimZones sets the zones in which the sweep looks for the addresses. After a reboot
// there are none: addresses in them now were added since.
func (a *attachment) aimZones(f *footprint) {
	f.bus = a.op.bus
	if !a.op.rebooted {
		f.zones, _ = a.zones()
	}
	before, err := firewalld.Recall(a)
	if err != nil {
		// An attachment's own notes are not damaged if its record is not.
		a.op.logger.Warn("the addresses that were in firewalld's zones before cannot be read", "container", a.op.id, "error", err)
	}
	f.isForeign = func(z zoned) bool { return before.Foreign(z.zone, z.addr) }
}

// mayBeIn returns the attachment's addresses with the zones that they may be in,
// without those of siblings.
func (f *footprint) mayBeIn() (all []zoned) {
	for _, zone := range f.zones {
		for _, addr := range f.Addresses {
			if z := (zoned{zone, addr}); !slices.Contains(f.siblings.Addresses, addr) && !slices.Contains(all, z) {
				all = append(all, z)
			}
		}
	}
	return all
}

// inZones returns the addresses that are left in zones. It omits addresses that were
// there before the attachment, and those that another container has now.
func (f *footprint) inZones(ctx context.Context) ([]sweep.Item, error) {
	d := firewalldAt{f.bus, f.Host}
	found, err := d.has(ctx, slices.DeleteFunc(f.mayBeIn(), f.isForeign))
	if len(found) == 0 || err != nil {
		return nil, err
	}
	// Finding the owners of the addresses takes reading all records, so it is done only
	// if an address is left.
	others, err := f.inZonesOf()
	if err != nil {
		return nil, err
	}
	var items []sweep.Item
	for _, z := range found {
		if !slices.Contains(others, z.addr) {
			items = append(items, zonedItem{z, d, ctx})
		}
	}
	return items, nil
}

// zonedItem is an address to be removed from its zone.
type zonedItem struct {
	zoned
	d   firewalldAt
	ctx context.Context
}

func (z zonedItem) String() string {
	return fmt.Sprintf("firewall-cmd --zone=%s --remove-source=%s", z.zone, firewalld.Source(z.addr))
}

func (z zonedItem) Remove() error {
	return z.d.ask(z.ctx, func(c *firewalld.Conn) error { return c.Remove(z.zone, z.addr) })
}

// firewalldAt is the firewalld on a bus, if it runs, reached from a network
// namespace.
type firewalldAt struct {
	bus  *firewalld.Bus
	host *netns.Handle
}

// zonesTime bounds the time that a sweep waits for firewalld. A DEL may have waited
// for it before.
const zonesTime = 5 * time.Second

// ask runs fn with a connection. It returns nil if firewalld does not run, or denies
// access: then this process has not added anything either.
func (d firewalldAt) ask(ctx context.Context, fn func(*firewalld.Conn) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, zonesTime, fmt.Errorf("no answer within %v: %w", zonesTime, context.DeadlineExceeded))
	defer cancel()
	c, err := d.bus.Dial(ctx, d.host)
	if err == nil {
		err = fn(c)
		c.Close()
	}
	if errors.Is(err, firewalld.ErrNotRunning) || errors.Is(err, firewalld.ErrDenied) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("ask firewalld for its zones: %w", err)
	}
	return nil
}

// has returns those of the addresses that are in their zones.
func (d firewalldAt) has(ctx context.Context, all []zoned) (found []zoned, err error) {
	if len(all) == 0 {
		return nil, nil
	}
	err = d.ask(ctx, func(c *firewalld.Conn) error {
		for _, z := range all {
			has, err := c.Has(z.zone, z.addr)
			if err != nil && !firewalld.Absent(err) {
				return err
			}
			if has {
				found = append(found, z)
			}
		}
		return nil
	})
	return found, err
}
