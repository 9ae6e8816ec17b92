package nft

import (
	"bytes"
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const (
	// longChain is how many rules a chain has that is worth keeping. To list fewer takes
	// no longer than to ask whether they have changed.
	longChain = 32

	// mostKept limits the memory that the lists of one namespace take, in bytes: the
	// chains that ten thousand containers share have about as much.
	mostKept = 32 << 20

	// mostLists limits the chains that are kept. Those that containers share are few; a
	// container with many ports has a long chain of its own.
	mostLists = 16

	// mostAnswers limits the new rules that a transaction asks the kernel to send back:
	// the answers must fit into the socket.
	mostAnswers = 32
)

// keeper keeps the rules of the long chains of one namespace, those that containers
// share. Every ADD and DEL looks at them, and the kernel takes half a microsecond to
// list a rule, of which there are thousands.
//
// The kernel counts every change of the rules in the generation. As long as that is the
// one of the lists, they are as good as new ones. A transaction of this process
// changes the lists as it changes the chains, because the kernel sends the new rules
// back with their handles. After a change by anybody else they are read again.
//
// It is safe for concurrent use.
type keeper struct {
	mu    sync.Mutex // of those who change the rules or the lists
	lists atomic.Pointer[lists]
	reads int // how often a list was read, for tests
}

// place names a chain of a table.
type place struct {
	table Table
	chain string
}

// lists are the rules of some chains at one generation. Nobody changes them once others
// can see them.
type lists struct {
	generation uint32
	chains     map[place][]listed // nil: it is long, and was not read at this generation
	size       int
}

// listed is a rule in a list.
type listed struct {
	handle  uint64
	message []byte // as the kernel has listed it
}

// load returns the present lists.
func (k *keeper) load() *lists {
	if l := k.lists.Load(); l != nil {
		return l
	}
	return &lists{}
}

// keeps reports whether the chain is kept.
func (k *keeper) keeps(at place) bool {
	if k == nil {
		return false
	}
	_, long := k.load().chains[at]
	return long
}

// note is told the number of rules of a chain that is not kept.
func (k *keeper) note(at place, rules int) {
	if k == nil || rules < longChain {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	next := k.load().clone()
	if len(next.chains) >= mostLists {
		next = &lists{chains: make(map[place][]listed)}
	}
	if _, known := next.chains[at]; !known {
		next.chains[at] = nil
	}
	k.lists.Store(next)
}

// rules returns the rules of a chain that is kept, as they are now.
func (k *keeper) rules(c *Conn, at place) ([]listed, error) {
	now, err := c.Generation()
	if err != nil {
		return nil, err
	}
	if l := k.load(); l.generation == now && l.chains[at] != nil {
		return l.chains[at], nil
	}
	// A transaction of this process may be about to change the lists. And of several
	// that want the same list, one reads it.
	k.mu.Lock()
	defer k.mu.Unlock()
	if now, err = c.Generation(); err != nil {
		return nil, err
	}
	l := k.load()
	if l.generation == now && l.chains[at] != nil {
		return l.chains[at], nil
	}
	if err := c.settle(); err != nil {
		return nil, err
	}
	all, err := c.readChain(at)
	k.reads++
	if err != nil {
		return nil, err
	}
	after, err := c.Generation()
	if err != nil {
		return nil, err
	}
	if after == now { // else it is not known whether the list is of this generation or the next
		k.lists.Store(l.of(now).with(at, all))
	}
	return all, nil
}

// readChain lists the rules of a chain.
func (c *Conn) readChain(at place) (all []listed, err error) {
	err = c.dump(getRules(at.table, at.chain), func(data []byte) error {
		if r := readRule(data); r.Chain == at.chain { // old kernels list all chains
			all = append(all, listed{r.Handle, slices.Clone(data)})
		}
		return nil
	})
	return all, err
}

// eachOf calls each with the rules that contain one of the byte strings, until it fails.
func eachOf(all []listed, containing [][]byte, each func(Rule) error) error {
	for _, one := range all {
		if !containsAny(one.message, containing) {
			continue
		}
		if err := each(readRule(one.message)); errors.Is(err, ErrStop) {
			return nil
		} else if err != nil {
			return err
		}
	}
	return nil
}

// containsAny reports whether data contains one of the byte strings, or there are none to
// look for.
func containsAny(data []byte, some [][]byte) bool {
	return some == nil || slices.ContainsFunc(some, func(s []byte) bool { return bytes.Contains(data, s) })
}

func (l *lists) clone() *lists {
	next := &lists{generation: l.generation, chains: maps.Clone(l.chains), size: l.size}
	if next.chains == nil {
		next.chains = make(map[place][]listed)
	}
	return next
}

// of returns the lists that are valid at a generation: all or none. The chains' names stay.
func (l *lists) of(generation uint32) *lists {
	next := l.clone()
	if next.generation != generation {
		next.generation, next.size = generation, 0
		for at := range next.chains {
			next.chains[at] = nil
		}
	}
	return next
}

// with sets a list of l, which nobody sees yet, and returns l.
func (l *lists) with(at place, all []listed) *lists {
	for _, one := range l.chains[at] {
		l.size -= len(one.message)
	}
	for _, one := range all {
		l.size += len(one.message)
	}
	switch l.chains[at] = all; {
	case len(all) < longChain:
		delete(l.chains, at)
	case l.size > mostKept:
		return &lists{chains: make(map[place][]listed)}
	}
	return l
}

// empty reports whether there is no list that a transaction could change.
func (l *lists) empty() bool {
	for _, all := range l.chains {
		if all != nil {
			return false
		}
	}
	return true
}

// transact is Transact of a Conn with a keeper.
func (k *keeper) transact(c *Conn, msgs []Message, generation *uint32) error {
	if len(msgs) == 0 || k.load().empty() {
		return c.transact(msgs, generation, nil)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.load()
	asked := slices.Clone(msgs)
	if !msgs[0].deletesMany() {
		asked[0].flags |= unix.NLM_F_ECHO // the kernel reports the new generation too
	}
	answers := 0
	for i, m := range msgs {
		if m.typ == unix.NFT_MSG_NEWRULE && l.chains[m.place()] != nil && answers < mostAnswers {
			asked[i].flags |= unix.NLM_F_ECHO
			answers++
		}
	}
	var made change
	err := c.transact(asked, generation, made.hear)
	switch {
	case err == nil:
		k.lists.Store(l.after(msgs, made))
	case errors.Is(err, ErrUncertain):
		k.lists.Store(l.of(0))
	}
	return err
}

// deletesMany reports whether the message deletes any number of rules, each of which the
// kernel would report: more than the socket holds, and the answer would be lost.
func (m Message) deletesMany() bool {
	return m.typ == unix.NFT_MSG_DELCHAIN || m.typ == unix.NFT_MSG_DELRULE && m.handle() == 0
}

// handle returns the handle of the rule that a message about one names, or 0.
func (m Message) handle() uint64 {
	return readRule(append(make([]byte, netfilterHeader), m.attrs...)).Handle
}

// change is the kernel's report of a transaction.
type change struct {
	generation uint32
	rules      map[int]listed // by the index of their messages
}

// hear takes a report about a message of the transaction.
func (c *change) hear(index int, typ uint16, data []byte) {
	switch typ & 0xff {
	case unix.NFT_MSG_NEWGEN:
		if b := attribute(body(data), unix.NFTA_GEN_ID); len(b) == 4 {
			c.generation = binary.BigEndian.Uint32(b)
		}
	case unix.NFT_MSG_NEWRULE:
		if c.rules == nil {
			c.rules = make(map[int]listed)
		}
		c.rules[index] = listed{readRule(data).Handle, slices.Clone(data)}
	}
}

// following returns the generation after another one: 0 is none (nf_tables_commit).
func following(generation uint32) uint32 { return max(generation+1, 1) }

// after returns the lists after a transaction. They are not known if others have changed
// the rules between.
func (l *lists) after(msgs []Message, made change) *lists {
	if made.generation != following(l.generation) {
		return l.of(0)
	}
	next := l.clone()
	next.generation = made.generation
	for i, m := range msgs {
		at := m.place()
		all := next.chains[at]
		switch m.typ {
		case unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_NEWSET, unix.NFT_MSG_NEWSETELEM, unix.NFT_MSG_DELSETELEM:
			// no rule
		case unix.NFT_MSG_NEWRULE:
			if all != nil {
				next = next.with(at, m.added(all, made.rules[i]))
			}
		case unix.NFT_MSG_DELRULE:
			if all != nil {
				next = next.with(at, m.deleted(all))
			}
		case unix.NFT_MSG_DELCHAIN:
			next = next.with(at, nil)
		default:
			return l.of(0)
		}
	}
	return next
}

// added returns the list after a message that adds a rule, or nil if that is not known.
func (m Message) added(all []listed, made listed) []listed {
	switch {
	case made.handle == 0:
		return nil
	case m.flags&unix.NLM_F_APPEND != 0:
		// Whoever reads the old list reads no further than to its end.
		return append(all, made)
	}
	return slices.Concat([]listed{made}, all)
}

// deleted returns the list after a message that deletes one rule, or nil if it deletes
// others.
func (m Message) deleted(all []listed) []listed {
	handle := m.handle()
	if handle == 0 {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(all), func(one listed) bool { return one.handle == handle })
}

// place returns the chain that a message about a rule or a chain is about.
func (m Message) place() place {
	name := func(attr uint16) string { return unix.ByteSliceToString(attribute(m.attrs, attr)) }
	switch m.typ {
	case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		return place{Table{m.family, name(unix.NFTA_RULE_TABLE)}, name(unix.NFTA_RULE_CHAIN)}
	case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN:
		return place{Table{m.family, name(unix.NFTA_CHAIN_TABLE)}, name(unix.NFTA_CHAIN_NAME)}
	}
	return place{}
}
