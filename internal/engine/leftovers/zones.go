package leftovers

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/kernel/firewalld"
	"github.com/embedcni/cni/internal/kernel/netfilter"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/internal/store/record"
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

// zoned finds the addresses that are left in zones of firewalld. It omits addresses
// that were there before the attachment, and those that another container has now.
func (t *Target) zoned(ctx context.Context) (items []Item, err error) {
	var all, found []zoned
	for _, zone := range t.Footprint.Zones {
		for _, addr := range t.Footprint.Addresses {
			z := zoned{zone, addr}
			if !slices.Contains(t.Siblings.Addresses, addr) && !slices.Contains(all, z) && !t.Before.Foreign(zone, addr) {
				all = append(all, z)
			}
		}
	}
	if len(all) == 0 {
		return nil, nil
	}
	err = t.askFirewalld(ctx, func(c *firewalld.Conn) error {
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
	if len(found) == 0 || err != nil {
		return nil, err
	}
	others, err := t.InZones() // reads all records, so it is asked only now
	if err != nil {
		return nil, err
	}
	for _, z := range found {
		if slices.Contains(others, z.addr) {
			continue
		}
		items = append(items, Item{
			fmt.Sprintf("firewall-cmd --zone=%s --remove-source=%s", z.zone, firewalld.Source(z.addr)),
			func(ctx context.Context) error {
				return t.askFirewalld(ctx, func(c *firewalld.Conn) error { return c.Remove(z.zone, z.addr) })
			},
		})
	}
	return items, nil
}

// zonesTime bounds the time that a sweep waits for firewalld. A DEL may have waited
// for it before.
const zonesTime = 5 * time.Second

// askFirewalld runs fn with a connection. It returns nil if firewalld does not run, or denies
// access: then this process has not added anything either.
func (t *Target) askFirewalld(ctx context.Context, fn func(*firewalld.Conn) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, zonesTime, fmt.Errorf("no answer within %v: %w", zonesTime, context.DeadlineExceeded))
	defer cancel()
	err := t.Firewalld.Do(ctx, t.Host, fn)
	if errors.Is(err, firewalld.ErrNotRunning) || errors.Is(err, firewalld.ErrDenied) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("ask firewalld for its zones: %w", err)
	}
	return nil
}

// zones returns the zones of firewalld that the attachment's plugins may have used.
// certain reports whether a plugin uses firewalld for certain, if its ADD got that
// far. An executable whose configuration names no backend does not report the one
// that it has chosen.
func (a *Attachment) zones() (zones []string, certain bool) {
	if a.Ran.IsCallers(conflist.Firewall) {
		return nil, false
	}
	ran, _ := a.Ran.Plugin(conflist.Firewall)
	return zonesOf(a.List.Plugins, ran)
}

// IsZoned reports whether a DEL certainly removes the addresses from a zone.
func (a *Attachment) IsZoned() bool {
	_, certain := a.zones()
	return certain
}

// maybeZoned reports whether a recorded attachment may have addresses in a zone.
func maybeZoned(n *record.Attachment) bool {
	list, err := conflist.Parse(n.Config)
	if err != nil {
		return true // unknown
	}
	ran, _ := Ran{Plugins: n.Plugins}.Plugin(conflist.Firewall)
	zones, _ := zonesOf(list.Plugins, ran)
	return len(zones) > 0
}

// zonesOf is zones for plugins with these configurations. ran is the record of the
// plugin firewall.
func zonesOf(plugins []*libcni.PluginConfig, ran record.Plugin) (zones []string, certain bool) {
	for _, p := range plugins {
		var c struct {
			Backend json.RawMessage `json:"backend"`
			Zone    json.RawMessage `json:"firewalldZone"`
		}
		if p.Network.Type != conflist.Firewall || json.Unmarshal(p.Bytes, &c) != nil {
			continue
		}
		used := false // for certain
		switch backend := text(c.Backend); {
		case backend == "iptables":
			continue
		case backend == "firewalld":
			used = true
		case ran.Kind == record.KindBuiltIn && ran.Backend != "":
			if used = ran.Backend == netfilter.DetectedFirewalld; !used {
				continue
			}
		}
		zones = append(zones, cmp.Or(text(c.Zone), firewalld.DefaultZone))
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
