package netfilter

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/embedcni/cni/internal/kernel/nft"
)

// state is what this module's tables have at one time, as far as a query has asked. It is
// safe for concurrent use.
type state struct {
	sets     map[string]bool
	rules    map[string][]nft.Object // by chain
	elements map[element]element
	broken   map[nft.Table]error // names the first part that is missing whatever the elements are
}

// query asks for elements.
type query struct {
	tables []nft.Table
	keys   []element    // those with these keys
	addrs  []netip.Addr // those of these addresses, in any set
	whole  []nft.Table  // all of these tables
	layout bool         // the chains and rules are asked for, too
}

// read answers the query.
func (q query) read(c *nft.Conn) (*state, error) {
	s := &state{sets: make(map[string]bool), rules: make(map[string][]nft.Object),
		elements: make(map[element]element), broken: make(map[nft.Table]error)}
	for _, t := range q.tables {
		if err := q.readTable(c, t, s); err != nil {
			return nil, fmt.Errorf("look at table %v: %w", t, err)
		}
		if q.layout {
			_, s.broken[t] = s.missing(t, nil)
		}
	}
	return s, nil
}

func (q query) readTable(c *nft.Conn, t nft.Table, s *state) error {
	names, err := c.Sets(t)
	if err != nil {
		return err
	}
	keys, whole := slices.DeleteFunc(slices.Clone(q.keys), func(e element) bool { return tableOf(e.Set) != t }), []string(nil)
	for _, name := range names {
		s.sets[name] = true
		keys = append(keys, keysIn(name, q.addrs)...)
		if _, ours := setOf(name); ours && slices.Contains(q.whole, t) {
			whole = append(whole, name)
		}
	}
	if q.layout {
		if names, err = c.Chains(t); err != nil {
			return err
		}
		for _, name := range names {
			s.rules[name] = nil
		}
		err = c.Rules(t, "", nil, func(r nft.Rule) error {
			s.rules[r.Chain] = append(s.rules[r.Chain], r.Object(t))
			return nil
		})
		if err != nil {
			return err
		}
	}
	found, err := c.Elements(t, keys, whole)
	for _, e := range found {
		s.elements[keyOf(e)] = e
	}
	return err
}

// keysIn returns the keys that the addresses have in a set.
func keysIn(set string, addrs []netip.Addr) (keys []element) {
	prefix, v6, bits, ok := perLength(set)
	for _, a := range addrs {
		if set == perFamily("containers", a) {
			keys = append(keys, element{Set: set, Key: keyAddr(a)})
		}
		if !ok || a.Is6() != v6 {
			continue
		}
		one := netip.PrefixFrom(a, a.BitLen())
		keys = append(keys, pairElement(prefix, one, netip.PrefixFrom(a, bits), ""))
		if prefix == hairpinPrefix && set == perFamily(prefix, a)+"_8" && !v6 {
			keys = append(keys, pairElement(prefix, one, loopback4(), ""))
		}
	}
	return keys
}

// absent returns an error that names the first of the elements that is missing, or
// the first part of the layout that it needs. found is the first element that is
// in the place of one.
func (s *state) absent(wanted []element, siblings func() Siblings) (found string, err error) {
	for _, name := range setsOf(wanted) {
		switch broken := s.broken[tableOf(name)]; {
		case err != nil:
		case broken != nil:
			err = wrapNFT(broken)
		case !s.sets[name]: // else it has its rule
			err = fmt.Errorf("nftables: set %v %s is missing", tableOf(name), name)
		}
	}
	for _, e := range wanted {
		there, ok := s.elements[keyOf(e)]
		if there == e || ok && isPort(e) && siblings().Have(there.Comment) {
			continue
		}
		lost := fmt.Errorf("nftables: %v is missing", elementText(e))
		if ok {
			lost = fmt.Errorf("%w, there is %v", lost, elementText(there))
		}
		if ok && found == "" {
			found = elementText(there).String()
		}
		if err == nil {
			err = lost
		}
	}
	return found, err
}

// setsOf returns the sets of the elements, each once.
func setsOf(elements []element) []string {
	return eachOnce(elements, func(e element) string { return e.Set })
}

// tablesOf returns the tables of the elements, each once.
func tablesOf(elements []element) []nft.Table {
	return eachOnce(elements, func(e element) nft.Table { return tableOf(e.Set) })
}

// eachOnce returns what of returns for the values, each once, in their order.
func eachOnce[T any, K comparable](all []T, of func(T) K) (found []K) {
	for _, one := range all {
		if k := of(one); !slices.Contains(found, k) {
			found = append(found, k)
		}
	}
	return found
}
