package compare

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/links"
)

// scripted is a namespace whose lists are given.
type scripted struct {
	links, addresses, routes error // that come with the lists
}

func (s scripted) Links() ([]links.Link, error) {
	return []links.Link{{Index: 2, Name: "eth0"}}, s.links
}

func (s scripted) AllAddresses() ([]links.Placed, error) {
	return []links.Placed{{Interface: 2}}, s.addresses
}

func (s scripted) Routes(int) ([]links.Route, error) {
	return []links.Route{{Interface: 2}}, s.routes
}

func TestAFailedListIsAnError(t *testing.T) {
	for _, want := range []error{unix.ENOBUFS, fmt.Errorf("list: %w", links.ErrTorn)} {
		for name, k := range map[string]scripted{"interfaces": {links: want}, "addresses": {addresses: want}, "routes": {routes: want}} {
			if n, err := read(k); !errors.Is(err, want) || n != nil {
				t.Errorf("%s: got %v, %v", name, n, err)
			}
		}
	}
}

// TestAppendingChangesNothing: an element that a caller appends is the
// caller's alone.
func TestAppendingChangesNothing(t *testing.T) {
	n := expect.Value(read(scripted{}))(t)
	for range 3 {
		all := expect.Value(n.Routes(2))(t)
		_ = append(all, links.Route{Interface: 9})
	}
	again := expect.Value(n.Routes(2))(t)
	expect.Same(t, "routes", again, []links.Route{{Interface: 2}})
}
