package bridge

import (
	"context"
	"encoding/json"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/netns"
)

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
func (p *Plugin) Witness(ctx context.Context, host *netns.Handle, config []byte) (after func() error, err error) {
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
	fresh := before.Index == 0 || before.Alias == "" && p.upcoming[its] > 0
	if fresh {
		if p.upcoming == nil {
			p.upcoming = make(map[upcoming]int)
		}
		p.upcoming[its]++
	}
	p.mu.Unlock()
	return func() error {
		err := note(ctx, host, c.Bridge, fresh)
		if !fresh {
			return err
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.upcoming[its]--; p.upcoming[its] == 0 {
			delete(p.upcoming, its)
		}
		return err
	}, nil
}

// note notes whose the bridge is. A fresh one was not there before the ADD.
func note(ctx context.Context, host *netns.Handle, name string, fresh bool) error {
	record := caller.From(ctx).Record
	br, err := find(ctx, host, name)
	switch {
	case err != nil, br.Kind != "bridge": // the ADD has failed
		return err
	case fresh && br.Alias == "":
		err = caller.On(ctx, host, func(conn *links.Conn) error { return mark(conn, br.Index) })
	case br.Alias != alias:
		return noteHosts(record)
	}
	if err != nil {
		return err
	}
	return noteMade(record, br)
}

// find returns the interface of the host; without one it is zero.
func find(ctx context.Context, host *netns.Handle, name string) (br links.Link, err error) {
	err = caller.On(ctx, host, func(conn *links.Conn) error {
		br, err = conn.Link(name)
		return err
	})
	if links.NotFound(err) {
		return links.Link{}, nil
	}
	return br, err
}
