package sweep

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/embedcni/cni/internal/firewalld"
	"github.com/embedcni/cni/internal/footprint"
)

// zoned finds the addresses that are left in zones of firewalld. It omits addresses
// that were there before the attachment, and those that another container has now.
func (s *search) zoned(ctx context.Context) ([]Item, error) {
	all := slices.DeleteFunc(s.Zoned(s.Siblings.Addresses), func(z footprint.Zoned) bool {
		return s.Before.Foreign(z.Zone, z.Addr)
	})
	if len(all) == 0 {
		return nil, nil
	}
	var found []footprint.Zoned
	err := s.askFirewalld(ctx, func(c *firewalld.Conn) error {
		for _, z := range all {
			has, err := c.Has(z.Zone, z.Addr)
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
	others, err := s.InZones() // reads all records, so it is asked only now
	if err != nil {
		return nil, err
	}
	var items []Item
	for _, z := range found {
		if !slices.Contains(others, z.Addr) {
			items = append(items, zonedItem{z, s})
		}
	}
	return items, nil
}

// zonedItem is an address to be removed from its zone.
type zonedItem struct {
	footprint.Zoned
	search *search
}

func (z zonedItem) String() string {
	return fmt.Sprintf("firewall-cmd --zone=%s --remove-source=%s", z.Zone, firewalld.Source(z.Addr))
}

func (z zonedItem) Remove(ctx context.Context) error {
	return z.search.askFirewalld(ctx, func(c *firewalld.Conn) error { return c.Remove(z.Zone, z.Addr) })
}

// zonesTime bounds the time that a sweep waits for firewalld. A DEL may have waited
// for it before.
const zonesTime = 5 * time.Second

// askFirewalld runs fn with a connection. It returns nil if firewalld does not run, or denies
// access: then this process has not added anything either.
func (s *search) askFirewalld(ctx context.Context, fn func(*firewalld.Conn) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, zonesTime, fmt.Errorf("no answer within %v: %w", zonesTime, context.DeadlineExceeded))
	defer cancel()
	c, err := s.Firewalld.Dial(ctx, s.Host)
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
