package netfilter

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// eachAttribute calls each with the attributes in b. What follows something
// malformed is left out.
func eachAttribute(b []byte, each func(typ uint16, data []byte)) {
	for len(b) >= attributeHeader {
		size, typ := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])
		if size < attributeHeader || size > len(b) {
			return
		}
		each(typ&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER), b[attributeHeader:size])
		b = b[min((size+3)&^3, len(b)):]
	}
}

// readElements reads a message about elements of one set.
func readElements(answer []byte) (all []element) {
	set := ""
	eachAttribute(answer[min(netfilterHeader, len(answer)):], func(typ uint16, list []byte) {
		switch typ {
		case unix.NFTA_SET_ELEM_LIST_SET:
			set = readString(list)
		case unix.NFTA_SET_ELEM_LIST_ELEMENTS:
			eachAttribute(list, func(_ uint16, one []byte) {
				e := element{set: set}
				eachAttribute(one, func(typ uint16, data []byte) {
					switch typ {
					case unix.NFTA_SET_ELEM_KEY:
						e.key = readValue(data)
					case unix.NFTA_SET_ELEM_DATA:
						e.value = readValue(data)
					case unix.NFTA_SET_ELEM_USERDATA:
						e.comment = comment(data)
					}
				})
				all = append(all, e)
			})
		}
	})
	return all
}

func readValue(data []byte) (value string) {
	eachAttribute(data, func(typ uint16, data []byte) {
		if typ == unix.NFTA_DATA_VALUE {
			value = string(data)
		}
	})
	return value
}

// readString reads what ends with a zero byte.
func readString(data []byte) string {
	if n := slices.Index(data, 0); n >= 0 {
		data = data[:n]
	}
	return string(data)
}

// generation returns that of the rules of the namespace.
func (s *socket) generation() (uint32, error) {
	generation, _, err := s.generationAnd()
	return generation, err
}

// generationAnd asks for the generation and then for other objects, all with one
// call of the kernel.
func (s *socket) generationAnd(others ...message) (uint32, [][]byte, error) {
	first := currentGeneration()
	answers, err := s.ask(append([]message{first}, others...))
	if r := (*refusal)(nil); errors.As(err, &r) && r.object == first.object && r.errno == unix.EINVAL {
		return 0, nil, errNoNFTables // there is nothing in the message to be invalid
	}
	if err != nil {
		return 0, nil, err
	}
	generation, err := readGeneration(answers[0])
	return generation, answers[1:], err
}

// elements returns those of the native table's elements that have one of the
// keys, and all of the sets, and the generation from which on that is so.
func (s *socket) elements(_ context.Context, keys []element, sets []string) ([]element, uint32, error) {
	generation, err := s.generation()
	if err != nil {
		return nil, 0, err
	}
	msgs := make([]message, len(keys))
	for i, k := range keys {
		msgs[i] = k.get()
	}
	answers, err := s.ask(msgs)
	if err != nil {
		return nil, 0, err
	}
	var found []element
	for _, a := range answers {
		found = append(found, readElements(a)...)
	}
	for _, set := range sets {
		b := appendString(nil, unix.NFTA_SET_ELEM_LIST_TABLE, nativeTable.name)
		b = appendString(b, unix.NFTA_SET_ELEM_LIST_SET, set)
		all := message{typ: unix.NFT_MSG_GETSETELEM, family: nativeTable.family, attrs: b, object: text("set " + nativeTable.String() + " " + set)}
		err := s.dump(all, func(data []byte) error {
			found = append(found, readElements(data)...)
			return nil
		})
		if err != nil {
			return nil, 0, err
		}
	}
	return found, generation, nil
}

// setNames returns the names of the native table's sets, none if there is no
// such table.
func (s *socket) setNames(context.Context) ([]string, error) {
	var names []string
	err := s.dump(message{
		typ: unix.NFT_MSG_GETSET, family: nativeTable.family, object: text("sets of table " + nativeTable.String()),
		attrs: appendString(nil, unix.NFTA_SET_TABLE, nativeTable.name),
	}, func(data []byte) error {
		eachAttribute(data[min(netfilterHeader, len(data)):], func(typ uint16, data []byte) {
			if typ == unix.NFTA_SET_NAME {
				names = append(names, readString(data))
			}
		})
		return nil
	})
	return names, err
}

// layout returns what there is of the native table, but for elements.
func (s *socket) layout(ctx context.Context) (layout, error) {
	l := layout{sets: make(map[string]bool), rules: make(map[string][]string)}
	names, err := s.setNames(ctx)
	if err != nil {
		return l, err
	}
	for _, name := range names {
		l.sets[name] = true
	}
	chains := message{typ: unix.NFT_MSG_GETCHAIN, family: nativeTable.family, object: text("chains of table " + nativeTable.String())}
	err = s.dump(chains, func(data []byte) error {
		var table, name string
		eachAttribute(data[min(netfilterHeader, len(data)):], func(typ uint16, data []byte) {
			switch typ {
			case unix.NFTA_CHAIN_TABLE:
				table = readString(data)
			case unix.NFTA_CHAIN_NAME:
				name = readString(data)
			}
		})
		if table == nativeTable.name {
			l.rules[name] = nil
		}
		return nil
	})
	if err != nil {
		return l, err
	}
	return l, s.rules(nativeTable, "", nil, func(r nftRule, _ []byte) { l.rules[r.chain] = append(l.rules[r.chain], r.comment) })
}

// rules calls each with the rules of a chain, or with those of all if it is
// empty. What does not exist has none. With wanted, it passes over rules whose
// comment is not: to read one whole takes most of the time.
func (s *socket) rules(table nftTable, chain string, wanted func(comment string) bool, each func(r nftRule, answer []byte)) error {
	b := appendString(nil, unix.NFTA_RULE_TABLE, table.name)
	object := "rules of table " + table.String()
	if chain != "" {
		b = appendString(b, unix.NFTA_RULE_CHAIN, chain)
		object = "rules of chain " + table.String() + " " + chain
	}
	return s.dump(message{typ: unix.NFT_MSG_GETRULE, family: table.family, attrs: b, object: text(object)}, func(data []byte) error {
		if wanted != nil && !wanted(ruleComment(data)) {
			return nil
		}
		r, err := decodeRule(table.family, data)
		if err != nil {
			return fmt.Errorf("read rule %d of chain %q: %w", r.handle, r.chain, err)
		}
		each(r, data)
		return nil
	})
}

// ruleComment reads no more of a rule than its comment.
func ruleComment(answer []byte) (found string) {
	eachAttribute(answer[min(netfilterHeader, len(answer)):], func(typ uint16, data []byte) {
		if typ == unix.NFTA_RULE_USERDATA {
			found = comment(data)
		}
	})
	return found
}
