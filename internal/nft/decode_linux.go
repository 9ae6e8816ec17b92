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

// Values returns the values that the rule compares with and loads, in order.
func (r Rule) Values() (values [][]byte) {
	for _, x := range r.Exprs.List() {
		if v := x.Value(); v != nil {
			values = append(values, v)
		}
	}
	return values
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
func (c *Conn) Generation() (uint32, error) {
	generation, _, err := c.generationAnd(nil)
	return generation, err
}

// InOneGeneration calls read, whose lists take several messages, and fails with
// [ErrChanged] if rules change meanwhile, after read has seen all that came.
func (c *Conn) InOneGeneration(read func(generation uint32) error) error {
	before, err := c.Generation()
	if err != nil {
		return err
	}
	c.watched = true
	err = read(before)
	c.watched = false
	if err != nil {
		return err
	}
	after, err := c.Generation()
	if err == nil && after != before {
		err = ErrChanged
	}
	return err
}

// generationAnd asks for the generation and then for other objects, with one
// system call.
func (c *Conn) generationAnd(others []Message) (uint32, [][]byte, error) {
	first := Message{typ: unix.NFT_MSG_GETGEN, family: unix.AF_UNSPEC, object: text("the generation")}
	answers, err := c.ask(append([]Message{first}, others...))
	if r := (*Error)(nil); errors.As(err, &r) && r.Object == first.object && r.Errno == unix.EINVAL {
		return 0, nil, ErrNotSupported // the message holds nothing that could be invalid
	}
	if err != nil {
		return 0, nil, err
	}
	if answers[0] == nil {
		return 0, nil, ErrNotSupported
	}
	id := attribute(body(answers[0]), unix.NFTA_GEN_ID)
	if len(id) != 4 {
		return 0, nil, errors.New("ask for the generation: no answer")
	}
	return binary.BigEndian.Uint32(id), answers[1:], nil
}

// Chain names a chain of a family, or a table if Chain is "".
type Chain struct{ Table, Chain string }

// Exist reports, in order, which of the chains and tables exist, with one system call.
func (c *Conn) Exist(family uint8, chains ...Chain) (exist []bool, err error) {
	exist = make([]bool, len(chains))
	var msgs []Message
	var asked []int
	for i, chain := range chains {
		if len(chain.Chain) >= unix.NFT_NAME_MAXLEN {
			continue // the kernel would take the message for invalid
		}
		t := Table{family, chain.Table}
		m := getChain(t, chain.Chain)
		if chain.Chain == "" {
			m = newMessage(unix.NFT_MSG_GETTABLE, 0, t, "table "+t.String(), str(unix.NFTA_TABLE_NAME, t.Name))
		}
		msgs, asked = append(msgs, m), append(asked, i)
	}
	_, answers, err := c.generationAnd(msgs)
	for i, answer := range answers {
		exist[asked[i]] = answer != nil
	}
	return exist, err
}

// Rules calls each with the rules of a chain in order, or with those of the
// whole table if chain is "". If byte strings are given, it skips rules that
// contain none of them: most rules are other containers', and decoding them
// would take most of the time.
func (c *Conn) Rules(t Table, chain string, containing [][]byte, each func(Rule) error) error {
	return c.dump(getRules(t, chain), func(data []byte) error {
		if !containsAny(data, containing) {
			return nil
		}
		r := readRule(data)
		if chain != "" && r.Chain != chain { // old kernels list all chains
			return nil
		}
		return each(r)
	})
}

// containsAny reports whether data contains one of the byte strings, or there are none.
func containsAny(data []byte, some [][]byte) bool {
	return len(some) == 0 || slices.ContainsFunc(some, func(one []byte) bool { return bytes.Contains(data, one) })
}

// getRules lists the rules of a chain, or of the whole table if chain is "".
func getRules(t Table, chain string) Message {
	if chain == "" {
		return newMessage(unix.NFT_MSG_GETRULE, 0, t, "rules of table "+t.String(), str(unix.NFTA_RULE_TABLE, t.Name))
	}
	return newMessage(unix.NFT_MSG_GETRULE, 0, t, "rules of chain "+t.String()+" "+chain, ruleAttrs(t, chain))
}

// Chains returns the names of the table's chains.
func (c *Conn) Chains(t Table) ([]string, error) {
	return c.names(newMessage(unix.NFT_MSG_GETCHAIN, 0, t, "chains of table "+t.String()), t, unix.NFTA_CHAIN_TABLE, unix.NFTA_CHAIN_NAME)
}

// Sets returns the names of the table's sets and maps.
func (c *Conn) Sets(t Table) ([]string, error) {
	return c.names(newMessage(unix.NFT_MSG_GETSET, 0, t, "sets of table "+t.String(), str(unix.NFTA_SET_TABLE, t.Name)), t, unix.NFTA_SET_TABLE, unix.NFTA_SET_NAME)
}

// names returns the names of the listed objects of a table.
func (c *Conn) names(m Message, t Table, table, name uint16) (names []string, err error) {
	err = c.dump(m, func(data []byte) error {
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
	msgs := make([]Message, len(keys))
	for i, k := range keys {
		msgs[i] = k.message(t, unix.NFT_MSG_GETSETELEM, false)
	}
	answers, err := c.ask(msgs)
	for _, a := range answers {
		found = append(found, readElements(a)...)
	}
	for _, set := range sets {
		if err != nil {
			break
		}
		all := newMessage(unix.NFT_MSG_GETSETELEM, 0, t, fmt.Sprintf("set %v %s", t, set),
			str(unix.NFTA_SET_ELEM_LIST_TABLE, t.Name), str(unix.NFTA_SET_ELEM_LIST_SET, set))
		err = c.dump(all, func(data []byte) error {
			found = append(found, readElements(data)...)
			return nil
		})
	}
	return found, err
}
