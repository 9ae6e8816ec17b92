package veth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/netns"
)

// ensureBridge returns the bridge, up and as configured. It creates a missing
// one. Many attachments may do this at once.
func (a *bridged) ensureBridge(ctx context.Context, conn *links.Conn, host *netns.Handle) (br links.Link, err error) {
	br, err = conn.Link(a.conf.Bridge)
	if links.NotFound(err) || err == nil && br.Alias != alias {
		br, err = a.findOrCreate(ctx, conn, host)
	}
	if err == nil {
		err = a.conf.prepareBridge(conn, host, br)
	}
	return br, err
}

// findOrCreate returns the bridge, or creates it. Of one plugin's attachments, one
// creates and marks it, and the others wait for both. If containers are on record for
// which an ADD made the bridge, somebody has deleted it. They know its hardware address,
// so that it comes back with that, as from Repair.
func (a *bridged) findOrCreate(ctx context.Context, conn *links.Conn, host *netns.Handle) (br links.Link, err error) {
	a.plugin.making.Lock()
	defer a.plugin.making.Unlock()
	br, err = conn.Link(a.conf.Bridge)
	if !links.NotFound(err) {
		return br, err
	}
	m, err := madeForOthers(contract.From(ctx).Record, a.conf.Bridge)
	if err != nil {
		return br, err
	}
	return a.conf.createBridge(conn, host, m)
}

// prepareBridge sets the bridge up if it fits the configuration.
func (c *bridgeConfig) prepareBridge(conn *links.Conn, host *netns.Handle, br links.Link) error {
	if err := c.fits(br); err != nil {
		return err
	}
	var flags uint32 = unix.IFF_UP
	if c.PromiscMode {
		flags |= unix.IFF_PROMISC
	}
	if br.Flags&flags != flags {
		if err := conn.Change(br.Index, links.Change{Set: flags}); err != nil {
			return fmt.Errorf("set bridge %q up: %w", c.Bridge, err)
		}
	}
	if ra := NoRA(c.Bridge); !br.Has(ra) {
		if err := links.WriteSysctls(host, ra); err != nil {
			return err
		}
	}
	return nil
}

// fits returns an error if the interface cannot serve as the bridge.
func (c *bridgeConfig) fits(br links.Link) error {
	if br.Kind != "bridge" {
		return invalid(`"bridge": interface %q exists and is not a bridge, but %q`, c.Bridge, br.Kind)
	}
	if c.port.filtersVLANs() && !br.VLANFiltering {
		return invalid(`"vlan", "vlanTrunk": bridge %q does not keep VLANs apart: `+
			`set its vlan_filtering to 1; if it cannot be set, this kernel was built without BRIDGE_VLAN_FILTERING`, c.Bridge)
	}
	return nil
}

// createBridge creates the bridge with the alias that says who made it and its
// link-local address, and leaves it down. With the address, the host can forward
// to it as soon as there is a container. A bridge that was noted comes back as it was.
func (c *bridgeConfig) createBridge(conn *links.Conn, host *netns.Handle, noted *made) (br links.Link, err error) {
	b := links.Bridge{Name: c.Bridge, MTU: c.shared.MTU, VLANFiltering: c.port.filtersVLANs()}
	if noted != nil {
		b.VLANFiltering = b.VLANFiltering || noted.VLANFiltering
		b.MAC, _ = net.ParseMAC(noted.MAC) // a random one is better than no bridge
	}
	br, err = b.Create(conn)
	if errors.Is(err, unix.EEXIST) { // another attachment was faster
		return conn.Link(b.Name)
	}
	if err != nil {
		return br, err
	}
	if err := mark(conn, br.Index); err != nil {
		return br, fmt.Errorf("bridge %q: %w", b.Name, err)
	}
	br.Alias = alias
	_, err = links.LinkLocal(conn, host, br)
	return br, err
}

// bridge compares the properties of the bridge that every attachment needs, and
// the mode that Add has set. The rest belongs to the host: the bridge's MAC
// address follows its ports unless somebody sets it, and VLAN filtering and MTU
// are shared by all of its ports, some of which may be an administrator's.
func (c *comparison) bridge(ctx context.Context) (err error) {
	said := contract.OnHost(c.r, c.conf.Bridge)
	if said == nil {
		return fmt.Errorf("prevResult has no bridge %q", c.conf.Bridge)
	}
	record := contract.From(ctx).Record
	if c.made, err = madeBy(record); err != nil {
		return err
	}
	c.hosts = string(record.Fact(hostsNote)) == "true"
	lacks := func(wanted, found string, err error) {
		c.lacks(contract.Difference{Kind: contract.Bridge, Object: c.conf.Bridge, Wanted: wanted, Found: found, Err: err}, c.restoreBridge)
	}
	br, err := c.v.Host.Link(c.conf.Bridge)
	switch {
	case links.NotFound(err):
		lacks(said.Mac, "", fmt.Errorf("bridge: %w", err))
		return nil
	case err != nil:
		return fmt.Errorf("bridge: %w", err)
	case br.Kind != "bridge":
		c.other = true
		c.lacks(contract.Difference{
			Kind: contract.Bridge, Object: c.conf.Bridge, Wanted: "bridge", Found: br.Kind, Why: "it differs",
			Err: fmt.Errorf("interface %q is not a bridge, but %q", c.conf.Bridge, br.Kind),
		}, nil)
		return nil
	}
	if c.br = br; !br.Up() {
		lacks("up", "down", fmt.Errorf("bridge %q is down", c.conf.Bridge))
	}
	if c.conf.PromiscMode && !br.Promiscuous() {
		lacks("promiscuous", "", fmt.Errorf(`"promiscMode": bridge %q is not in promiscuous mode`, c.conf.Bridge))
	}
	return nil
}

// ours reports whether an ADD made the bridge: the one that
// exists, or else the one of the record. An administrator, or another program,
// may have deleted ours and made another.
func (c *comparison) ours() bool {
	return c.made != nil && !c.other && (c.br.Index == 0 || c.made.is(c.br))
}

// whose says why a bridge is not ours.
func (c *comparison) whose() string {
	switch {
	case c.made != nil:
		return "somebody else replaced the bridge of the ADD: it is the host's"
	case c.hosts:
		return "the bridge was there before the ADD: it is the host's"
	}
	return "the record does not say whether an ADD made the bridge, so it counts as the host's"
}

// restoreBridge makes the bridge again, with its hardware address, and sets it up,
// unless somebody else made it. Many attachments may do this at once. It completes one
// whose maker was killed. The link-local address, which goes when it is set down, comes
// first, because the kernel would first look for duplicates.
func (c *comparison) restoreBridge(_ context.Context, conn *links.Conn, _ links.Link) error {
	br, err := conn.Link(c.conf.Bridge)
	if links.NotFound(err) {
		br, err = c.conf.createBridge(conn, c.r.Host, c.made)
	}
	if err != nil {
		return fmt.Errorf("bridge: %w", err)
	}
	if !c.made.is(br) {
		return nil
	}
	if br.Alias == "" {
		if err := mark(conn, br.Index); err != nil {
			return err
		}
	}
	if !br.Up() {
		uplink, err := links.HasUplink(conn, br.Index)
		if err == nil && !uplink {
			_, err = links.LinkLocal(conn, c.r.Host, br)
		}
		if err != nil {
			return err
		}
	}
	return c.conf.prepareBridge(conn, c.r.Host, br)
}

// A bridge that an ADD of this plugin made is made again if it is gone; others
// belong to the host. The bridge carries an alias, by which each later ADD, of
// any program, sees who made it, and notes the fact for its own attachment: the
// attachment that made the bridge may be gone while others use it. A bridge that
// an administrator or another program makes under the same name has no such
// alias.
const (
	alias    = "embedcni"
	madeNote = "bridge.made"
	// hostsNote says that the bridge was there before the ADD, and that no ADD had made it.
	// Records of earlier versions have neither note for a bridge of the host, nor for one
	// that an executable made.
	hostsNote = "bridge.hosts"
)

// made is the note about a bridge that an ADD made.
type made struct {
	MAC           string `json:"mac"`
	VLANFiltering bool   `json:"vlanFiltering,omitempty"`
}

// note notes whose the bridge is: made by an ADD, this one or an earlier one, or the host's.
func note(record contract.Record, br links.Link) error {
	if br.Alias != alias {
		return record.Note(hostsNote, true)
	}
	return record.Note(madeNote, made{MAC: br.MAC.String(), VLANFiltering: br.VLANFiltering})
}

// madeBy returns the note of an attachment, or nil. Attachments of earlier
// versions, and of other plugins, have none.
func madeBy(record contract.Record) (*made, error) {
	text := record.Fact(madeNote)
	if text == nil {
		return nil, nil
	}
	m := &made{}
	if err := json.Unmarshal(text, m); err != nil {
		return nil, fmt.Errorf("note %s: %w", madeNote, err)
	}
	return m, nil
}

// madeForOthers returns the last note of another attachment about the bridge of that name,
// or nil. The attachment's result says which bridge its note is about.
func madeForOthers(record contract.Record, bridge string) (last *made, err error) {
	others, err := record.Others(madeNote)
	if err != nil {
		return nil, fmt.Errorf("whether bridge %q was deleted: %w", bridge, err)
	}
	for _, o := range others {
		var result struct {
			Interfaces []struct{ Name, Sandbox string }
		}
		m := &made{}
		if json.Unmarshal(o.Result, &result) != nil || json.Unmarshal(o.Value, m) != nil {
			continue // another's record is no reason to fail
		}
		for _, i := range result.Interfaces {
			if i.Name == bridge && i.Sandbox == "" {
				last = m
			}
		}
	}
	return last, nil
}

// is reports whether the bridge is the noted one. One that was made again has its
// hardware address before it has the alias, and one that a later ADD made has
// another address.
func (m *made) is(br links.Link) bool {
	return br.Kind == "bridge" && (br.Alias == alias || br.MAC.String() == m.MAC)
}

// mark says who made a bridge.
func mark(conn *links.Conn, index int) error {
	text := alias
	if err := conn.Change(index, links.Change{Alias: &text}); err != nil {
		return fmt.Errorf("alias of interface %d: %w", index, err)
	}
	return nil
}

// The executable's ADD makes the bridge if it is missing, and says nothing about that. So
// Witness looks before, and marks the bridge afterwards as Add does. Then later ADDs, of
// any process, see who made it.

// upcoming identifies a bridge that an executable may be about to make.
type upcoming struct {
	host netns.ID
	name string
}

// Witness is called before the ADD of an executable of this type. The function that it
// returns is called after the ADD, whatever came of it: it notes whether an ADD made the
// bridge, this one or an earlier one.
func (p *Bridge) Witness(ctx context.Context, host *netns.Handle, config []byte) (after func() error, err error) {
	c := struct{ Bridge string }{defaultBridge}
	if err := json.Unmarshal(config, &c); err != nil {
		return nil, err
	}
	before, err := find(ctx, host, c.Bridge)
	if err != nil {
		return nil, err
	}
	// The executables of a crowd run at the same time. The first makes the bridge, and has
	// not ended when the next looks.
	its := upcoming{host.ID(), c.Bridge}
	p.mu.Lock()
	defer p.mu.Unlock()
	fresh := before.Index == 0 || before.Alias == "" && p.upcoming[its] > 0
	if !fresh {
		return func() error { return witnessed(ctx, host, c.Bridge, false) }, nil
	}
	if p.upcoming == nil {
		p.upcoming = make(map[upcoming]int)
	}
	p.upcoming[its]++
	return func() error {
		err := witnessed(ctx, host, c.Bridge, true)
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.upcoming[its]--; p.upcoming[its] == 0 {
			delete(p.upcoming, its)
		}
		return err
	}, nil
}

// witnessed notes whose the bridge is, and marks one that was not there before the ADD.
func witnessed(ctx context.Context, host *netns.Handle, name string, fresh bool) error {
	br, err := find(ctx, host, name)
	if err != nil || br.Kind != "bridge" { // the ADD has failed
		return err
	}
	if fresh && br.Alias == "" {
		if err := contract.On(ctx, host, func(conn *links.Conn) error { return mark(conn, br.Index) }); err != nil {
			return err
		}
		br.Alias = alias
	}
	return note(contract.From(ctx).Record, br)
}

// find returns the interface of the host; without one it is zero.
func find(ctx context.Context, host *netns.Handle, name string) (br links.Link, err error) {
	err = contract.On(ctx, host, func(conn *links.Conn) error {
		br, err = conn.Link(name)
		return err
	})
	if links.NotFound(err) {
		return links.Link{}, nil
	}
	return br, err
}
