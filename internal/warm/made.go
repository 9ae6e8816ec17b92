package warm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/plainfile"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/netns"
)

// Container is a container that was made ahead of time.
type Container struct {
	ID   record.ID
	Path string
	NS   netns.ID // of the container
	Host string   // the namespace in which its plugins ran
	Made []Made

	Record *plainfile.Unnamed // for the record of the container that it becomes
}

// DiscardFiles deletes the files that were made for a container that it has not become.
func (c *Container) DiscardFiles() {
	c.Record.Discard()
	for _, m := range c.Made {
		m.Cache.Discard()
	}
}

// Made is the part of an attachment that was made.
type Made struct {
	Network, IfName string
	Rest            chain.Part // of its plugins
	Facts           map[string]json.RawMessage
	Plugins         []record.Plugin    // that have run
	Seen            *Sight             // the state after it was made
	Cache           *plainfile.Unnamed // for its result
}

// Find returns what was made of an attachment, or nil.
func (c *Container) Find(network, ifName string) *Made {
	i := slices.IndexFunc(c.Made, func(m Made) bool { return m.Network == network && m.IfName == ifName })
	if i < 0 {
		return nil
	}
	return &c.Made[i]
}

// Lives returns ErrDead unless everything that was made still exists, and ErrUnfit if
// that cannot be known.
func (c *Container) Lives(ctx context.Context, at Place) error {
	if at.Container.ID() != c.NS {
		return fmt.Errorf("%s has become another namespace: %w", c.Path, ErrDead)
	}
	for _, m := range c.Made {
		if err := m.Seen.Unchanged(ctx, at); errors.Is(err, ErrDead) {
			return fmt.Errorf("network %q: %w", m.Network, err)
		} else if err != nil {
			return fmt.Errorf("%w: network %q: %w", ErrUnfit, m.Network, err)
		}
	}
	return nil
}
