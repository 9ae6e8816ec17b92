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
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/sweep"
	"github.com/embedcni/cni/netns"
)

// The plugin firewall puts a container's addresses into a zone of firewalld, where
// that runs or is named as the backend. There is one firewalld, whatever namespace
// the plugins run in, and what a zone has says nothing but the address.

// zoned is an address in a zone of firewalld.
type zoned struct {
	zone string
	addr netip.Addr
}

// firewallConf is what the plugin firewall reads about firewalld.
type firewallConf struct {
	Type    string          `json:"type"`
	Backend json.RawMessage `json:"backend"`
	Zone    json.RawMessage `json:"firewalldZone"`
}

// zones are the zones of firewalld that the attachment's plugins may have used.
// certain reports whether one of them has, if its ADD came that far: where the
// backend is not named, an executable does not say what it has found.
func (a *attachment) zones() (zones []string, certain bool) {
	if a.isCallers("firewall") {
		return nil, false
	}
	var configs []json.RawMessage
	for _, p := range a.network.config.Plugins {
		configs = append(configs, p.Bytes)
	}
	ran, _, _ := a.kinds.get("firewall")
	return zonesOf(configs, ran.Plugin)
}

// isZoned reports whether an attachment that is recorded may have addresses in a
// zone.
func isZoned(n *record.Network) bool {
	var list struct {
		Plugins []json.RawMessage `json:"plugins"`
	}
	if json.Unmarshal(n.Config, &list) != nil {
		return true // who knows
	}
	var ran record.Plugin
	for _, p := range n.Plugins {
		if p.Type == "firewall" {
			ran = p
		}
	}
	zones, _ := zonesOf(list.Plugins, ran)
	return len(zones) > 0
}

// zonesOf is zones for plugins with these configurations, where ran is what is
// recorded of the plugin firewall.
func zonesOf(configs []json.RawMessage, ran record.Plugin) (zones []string, certain bool) {
	for _, config := range configs {
		var c firewallConf
		if err := json.Unmarshal(config, &c); err != nil || c.Type != "firewall" {
			continue // footprint says what is wrong with it
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

// text is a field's value if that is a string, else empty.
func text(field json.RawMessage) string {
	var s string
	if json.Unmarshal(field, &s) != nil {
		return "" // the plugin refuses it
	}
	return s
}

// isZoned reports whether a DEL takes the addresses out of a zone.
func (a *attachment) isZoned() bool {
	_, certain := a.zones()
	return certain
}

// aimZones has the addresses looked for in zones. What is in them after a reboot
// was put there since.
func (a *attachment) aimZones(f *footprint) {
	f.bus = a.op.bus
	if !a.op.rebooted {
		f.zones, _ = a.zones()
	}
	before, err := firewalld.Recall(a)
	if err != nil {
		// An attachment's own notes are not damaged if its record is not.
		a.op.logger.Warn("what was in firewalld's zones before cannot be read", "container", a.op.id, "error", err)
	}
	f.isForeign = func(z zoned) bool { return before.Foreign(z.zone, z.addr) }
}

// mayBeIn are the attachment's addresses in the zones that they may be in.
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

// inZones are the addresses that are left in zones, without those that were there
// before, and those that are others' by now.
func (f *footprint) inZones(ctx context.Context) ([]sweep.Item, error) {
	d := firewalldAt{f.bus, f.Host}
	found, err := d.has(ctx, slices.DeleteFunc(f.mayBeIn(), f.isForeign))
	if len(found) == 0 || err != nil {
		return nil, err
	}
	// Whose the addresses are takes reading every record, so it is asked only when
	// something is left.
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

// zonedItem is one that is to go.
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

// firewalldAt is a firewalld that there may be on a bus, as it is reached from a
// namespace.
type firewalldAt struct {
	bus  *firewalld.Bus
	host *netns.Handle
}

// zonesTime bounds how long a sweep waits for firewalld, which a DEL may have
// waited for as well.
const zonesTime = 5 * time.Second

// ask runs fn with a connection. Where no firewalld runs there is nothing to ask,
// and who may not ask it has put nothing into it.
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
		return fmt.Errorf("what is in firewalld's zones: %w", err)
	}
	return nil
}

// has returns which of the addresses are in their zones.
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
