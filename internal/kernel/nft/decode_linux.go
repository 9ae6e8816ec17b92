package nft

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// Rule is a rule as the kernel lists it. It is valid until the function that it
// was passed to returns.
type Rule struct {
	Chain   string
	Handle  uint64
	Comment string
	Exprs   Exprs
}

// readRule reads a message about a rule.
func readRule(data []byte) (r Rule) {
	eachAttribute(body(data), func(typ uint16, data []byte) {
		switch typ {
		case unix.NFTA_RULE_CHAIN:
			r.Chain = unix.ByteSliceToString(data)
		case unix.NFTA_RULE_HANDLE:
			if len(data) == 8 {
				r.Handle = binary.BigEndian.Uint64(data)
			}
		case unix.NFTA_RULE_USERDATA:
			r.Comment = readComment(data)
		case unix.NFTA_RULE_EXPRESSIONS:
			r.Exprs = data
		}
	})
	return r
}

// Object returns the rule as an object to delete.
func (r Rule) Object(t Table) Object { return Object{t, r.Chain, r.Handle, r.Comment} }

// Expr is one expression.
type Expr struct {
	Name string
	data []byte
}

// List returns the expressions, but for counters.
func (e Exprs) List() (list []Expr) {
	eachAttribute(e, func(_ uint16, one []byte) {
		x := Expr{Name: unix.ByteSliceToString(attribute(one, unix.NFTA_EXPR_NAME)), data: attribute(one, unix.NFTA_EXPR_DATA)}
		if x.Name != "counter" {
			list = append(list, x)
		}
	})
	return list
}

// constant returns the attribute that holds the value or verdict of an expression
// that has one.
func (x Expr) constant() []byte {
	switch x.Name {
	case "cmp":
		return attribute(x.data, unix.NFTA_CMP_DATA)
	case "immediate":
		return attribute(x.data, unix.NFTA_IMMEDIATE_DATA)
	}
	return nil
}

// Value returns the value that the expression compares with or loads.
func (x Expr) Value() []byte { return attribute(x.constant(), unix.NFTA_DATA_VALUE) }

// Jump returns the chain that the expression jumps or goes to.
func (x Expr) Jump() string {
	return unix.ByteSliceToString(attribute(attribute(x.constant(), unix.NFTA_DATA_VERDICT), unix.NFTA_VERDICT_CHAIN))
}

// Drops reports whether the expression drops the packet.
func (x Expr) Drops() bool {
	verdict := attribute(x.constant(), unix.NFTA_DATA_VERDICT)
	code := attribute(verdict, unix.NFTA_VERDICT_CODE)
	return len(code) == 4 && binary.BigEndian.Uint32(code) == verdictDrop
}

// Extension returns the name and the struct of a match or target of iptables.
func (x Expr) Extension() (name string, info []byte) {
	if x.Name != "match" && x.Name != "target" { // whose attributes have the same numbers
		return "", nil
	}
	return unix.ByteSliceToString(attribute(x.data, unix.NFTA_MATCH_NAME)), attribute(x.data, unix.NFTA_MATCH_INFO)
}

// Jump returns the chain that the rule jumps or goes to, or "".
func (r Rule) Jump() (chain string) {
	for _, x := range r.Exprs.List() {
		if to := x.Jump(); to != "" {
			chain = to
		}
	}
	return chain
}

// readElements reads a message about elements of one set.
func readElements(answer []byte) (all []Element) {
	attrs := body(answer)
	set := unix.ByteSliceToString(attribute(attrs, unix.NFTA_SET_ELEM_LIST_SET))
	eachAttribute(attribute(attrs, unix.NFTA_SET_ELEM_LIST_ELEMENTS), func(_ uint16, one []byte) {
		value := func(attr uint16) string { return string(attribute(attribute(one, attr), unix.NFTA_DATA_VALUE)) }
		all = append(all, Element{
			Set: set, Key: value(unix.NFTA_SET_ELEM_KEY), Value: value(unix.NFTA_SET_ELEM_DATA),
			Comment: readComment(attribute(one, unix.NFTA_SET_ELEM_USERDATA)),
		})
	})
	return all
}

// Generation returns the number of the current state of the namespace's rules.
// Every change of any table makes another one.
func (c *Conn) Generation() (generation uint32, err error) {
	m := Message{typ: unix.NFT_MSG_GETGEN, family: unix.AF_UNSPEC, object: text("read the number of the last change of the rules")}
	there := false
	err = c.ask(m, func(data []byte) error {
		id := attribute(body(data), unix.NFTA_GEN_ID)
		if len(id) != 4 {
			return errors.New("ask for the generation: no answer")
		}
		there, generation = true, binary.BigEndian.Uint32(id)
		return nil
	})
	// The message holds nothing that could be invalid.
	if r := (*Error)(nil); errors.As(err, &r) && r.Errno == unix.EINVAL || err == nil && !there {
		err = ErrNotSupported
	}
	return generation, err
}

// Chain names a chain of a family, or a table if Chain is "".
type Chain struct{ Table, Chain string }

// Exist reports, in order, which of the chains and tables exist.
func (c *Conn) Exist(family uint8, chains ...Chain) (exist []bool, err error) {
	_, err = c.Generation()
	exist = make([]bool, len(chains))
	for i, chain := range chains {
		if err != nil || len(chain.Chain) >= unix.NFT_NAME_MAXLEN {
			continue // the kernel would take the message for invalid
		}
		t := Table{family, chain.Table}
		m := newMessage(unix.NFT_MSG_GETCHAIN, 0, t, "chain "+t.String()+" "+chain.Chain, chainAttrs(t, chain.Chain))
		if chain.Chain == "" {
			m = newMessage(unix.NFT_MSG_GETTABLE, 0, t, "table "+t.String(), str(unix.NFTA_TABLE_NAME, t.Name))
		}
		err = c.ask(m, func([]byte) error { exist[i] = true; return nil })
	}
	return exist, err
}

// Rules calls each with the rules of a chain in order, or with those of the
// whole table if chain is "". If byte strings are given, it skips rules that
// contain none of them: most rules are other containers', and decoding them
// would take most of the time.
func (c *Conn) Rules(t Table, chain string, containing [][]byte, each func(Rule) error) error {
	m := newMessage(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, t, "rules of table "+t.String(), str(unix.NFTA_RULE_TABLE, t.Name))
	if chain != "" {
		m = newMessage(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, t, "rules of chain "+t.String()+" "+chain, ruleAttrs(t, chain))
	}
	return c.ask(m, func(data []byte) error {
		if len(containing) > 0 && !slices.ContainsFunc(containing, func(one []byte) bool { return bytes.Contains(data, one) }) {
			return nil
		}
		r := readRule(data)
		if chain != "" && r.Chain != chain { // old kernels list all chains
			return nil
		}
		return each(r)
	})
}

// Chains returns the names of the table's chains.
func (c *Conn) Chains(t Table) ([]string, error) {
	m := newMessage(unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, t, "chains of table "+t.String())
	return c.names(m, t, unix.NFTA_CHAIN_TABLE, unix.NFTA_CHAIN_NAME)
}

// Sets returns the names of the table's sets and maps.
func (c *Conn) Sets(t Table) ([]string, error) {
	m := newMessage(unix.NFT_MSG_GETSET, unix.NLM_F_DUMP, t, "sets of table "+t.String(), str(unix.NFTA_SET_TABLE, t.Name))
	return c.names(m, t, unix.NFTA_SET_TABLE, unix.NFTA_SET_NAME)
}

// names returns the names of the listed objects of a table.
func (c *Conn) names(m Message, t Table, table, name uint16) (names []string, err error) {
	err = c.ask(m, func(data []byte) error {
		if attrs := body(data); unix.ByteSliceToString(attribute(attrs, table)) == t.Name {
			names = append(names, unix.ByteSliceToString(attribute(attrs, name)))
		}
		return nil
	})
	return names, err
}

// Elements returns those of the table's elements that have one of the keys, and all
// elements of the sets.
func (c *Conn) Elements(t Table, keys []Element, sets []string) (found []Element, err error) {
	var msgs []Message
	for _, k := range keys {
		msgs = append(msgs, k.message(t, unix.NFT_MSG_GETSETELEM, false))
	}
	for _, set := range sets {
		msgs = append(msgs, newMessage(unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, t, fmt.Sprintf("set %v %s", t, set),
			str(unix.NFTA_SET_ELEM_LIST_TABLE, t.Name), str(unix.NFTA_SET_ELEM_LIST_SET, set)))
	}
	for _, m := range msgs {
		err = c.ask(m, func(data []byte) error {
			found = append(found, readElements(data)...)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}
