package views

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

// TestATornListIsUsedAndSaysSo: a host on which interfaces come and go all the
// time has a look too.
func TestATornListIsUsedAndSaysSo(t *testing.T) {
	torn := fmt.Errorf("list: %w", links.ErrTorn)
	for name, test := range map[string]struct {
		kernel scripted
		torn   bool
	}{
		"complete":        {scripted{}, false},
		"torn interfaces": {scripted{links: torn}, true},
		"torn addresses":  {scripted{addresses: torn}, true},
		"torn routes":     {scripted{routes: torn}, true},
	} {
		n, err := read(test.kernel)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		expect.Same(t, name, n.Torn(), test.torn)
		if _, err := n.Link("eth0"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		addresses, err := n.Addresses(2)
		routes, err2 := n.Routes(2)
		if len(addresses) != 1 || len(routes) != 1 || errors.Join(err, err2) != nil {
			t.Errorf("%s: got %v, %v, %v", name, addresses, routes, errors.Join(err, err2))
		}
	}
}

func TestAFailedListIsAnError(t *testing.T) {
	for name, k := range map[string]scripted{
		"interfaces": {links: unix.ENOBUFS}, "addresses": {addresses: unix.ENOBUFS}, "routes": {routes: unix.ENOBUFS},
	} {
		if n, err := read(k); !errors.Is(err, unix.ENOBUFS) || n != nil {
			t.Errorf("%s: got %v, %v", name, n, err)
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
