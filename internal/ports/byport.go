package ports

import "slices"

// ByPort finds names by the ports in their codes, in a time that does not grow with the
// number of names. The zero ByPort is empty.
type ByPort struct {
	codes map[string]string // by name
	slots map[slot][]string // the names of those that have a port
	wide  map[string]string // the codes of those with many ports, or that cannot be read
}

type slot struct {
	letter byte // the first of the protocol
	port   uint16
}

// wide is the number of ports in a row from which on a name is not under each of them.
// Few containers of a host can have as many.
const wide = 256

// Code returns the code of a name. It is empty if the name has none.
func (b *ByPort) Code(name string) string { return b.codes[name] }

// Set gives a name a code in place of the one it had. An empty code removes the name.
func (b *ByPort) Set(name, code string) {
	before := b.codes[name]
	if before == code {
		return
	}
	inSlots(before, func(at slot) {
		left := slices.DeleteFunc(b.slots[at], func(other string) bool { return other == name })
		if b.slots[at] = left; len(left) == 0 {
			delete(b.slots, at)
		}
	})
	delete(b.wide, name)
	delete(b.codes, name)
	if code == "" {
		return
	}
	if b.codes == nil {
		b.codes, b.slots, b.wide = make(map[string]string), make(map[slot][]string), make(map[string]string)
	}
	b.codes[name] = code
	if !inSlots(code, func(at slot) { b.slots[at] = append(b.slots[at], name) }) {
		b.wide[name] = code
	}
}

// inSlots calls found for each port of a code. It reports false if the code has others.
func inSlots(code string, found func(slot)) (all bool) {
	all = true
	legible := EachSpan(code, func(s Span) {
		if int(s.Last)-int(s.First) >= wide {
			all = false
			return
		}
		for port := int(s.First); port <= int(s.Last); port++ {
			found(slot{s.Letter, uint16(port)})
		}
	})
	return all && legible
}

// Find returns the names that may have one of the claimed ports, each once, in order.
func (b *ByPort) Find(claims []Claim) (names []string) {
	for _, c := range claims {
		names = append(names, b.slots[slot{c.Protocol[0], c.Port}]...)
	}
	for name, code := range b.wide {
		if Coded(code, claims) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
