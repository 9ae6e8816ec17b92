package nft

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// The families of linux/netfilter.h, NFPROTO numbers.
const (
	FamilyInet   uint8 = 1
	FamilyIPv4   uint8 = 2
	FamilyBridge uint8 = 7
	FamilyIPv6   uint8 = 10
)

// attrTableUserdata is of linux/netfilter/nf_tables.h; the package unix does not have it.
const attrTableUserdata = 6

// Table names a table.
type Table struct {
	Family uint8
	Name   string
}

func (t Table) String() string {
	family := "inet"
	switch t.Family {
	case FamilyIPv4:
		family = "ip"
	case FamilyBridge:
		family = "bridge"
	case FamilyIPv6:
		family = "ip6"
	}
	return family + " " + t.Name
}

// NewTable creates the table if it is missing.
func NewTable(t Table, comment string) Message {
	attrs := str(unix.NFTA_TABLE_NAME, t.Name)
	if comment != "" {
		attrs = slices.Concat(attrs, number(unix.NFTA_TABLE_FLAGS, 0), attr(attrTableUserdata, userComment(comment)))
	}
	return newMessage(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, t, "table "+t.String(), attrs)
}

// Hook is the place of a base chain in the packet's path.
type Hook struct {
	Type     string // "nat", "filter"
	Number   uint32
	Priority int32
}

// InterfaceName returns the name of an interface in the size that rules and sets
// compare.
func InterfaceName(name string) (string, error) {
	if name == "" || len(name) >= unix.IFNAMSIZ {
		return "", fmt.Errorf("interface name %q: 1 to %d bytes are possible", name, unix.IFNAMSIZ-1)
	}
	return name + strings.Repeat("\x00", unix.IFNAMSIZ-len(name)), nil
}

// chainAttrs name a chain in a message about chains, and ruleAttrs in one about rules.
func chainAttrs(t Table, chain string) []byte {
	return slices.Concat(str(unix.NFTA_CHAIN_TABLE, t.Name), str(unix.NFTA_CHAIN_NAME, chain))
}

func ruleAttrs(t Table, chain string) []byte {
	return slices.Concat(str(unix.NFTA_RULE_TABLE, t.Name), str(unix.NFTA_RULE_CHAIN, chain))
}

// NewChain creates the chain if it is missing. A chain without a hook is only
// jumped to.
func NewChain(t Table, name string, h *Hook) Message {
	attrs := chainAttrs(t, name)
	if h != nil {
		attrs = slices.Concat(attrs, str(unix.NFTA_CHAIN_TYPE, h.Type), nested(unix.NFTA_CHAIN_HOOK,
			number(unix.NFTA_HOOK_HOOKNUM, h.Number), number(unix.NFTA_HOOK_PRIORITY, uint32(h.Priority))))
	}
	return newMessage(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, t, "chain "+t.String()+" "+name, attrs)
}

// NewRule adds a rule at the end of the chain.
func NewRule(t Table, chain string, e Exprs, comment string) Message {
	attrs, object := slices.Concat(ruleAttrs(t, chain), nested(unix.NFTA_RULE_EXPRESSIONS, e)), "rule "+t.String()+" "+chain
	if comment != "" {
		attrs = append(attrs, attr(unix.NFTA_RULE_USERDATA, userComment(comment))...)
		object = fmt.Sprintf("%s comment %q", object, comment)
	}
	return newMessage(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, t, object, attrs)
}

// Object is a rule to delete, or a chain with its rules if Handle is 0.
type Object struct {
	Table   Table
	Chain   string
	Handle  uint64 // the kernel never gives it to another rule of the table
	Comment string
}

func (o Object) String() string {
	if o.Handle == 0 {
		return fmt.Sprintf("delete chain %v %s", o.Table, o.Chain)
	}
	return fmt.Sprintf("delete rule %v %s handle %d # %q", o.Table, o.Chain, o.Handle, o.Comment)
}

// Deletion deletes the object.
func (o Object) Deletion() Message {
	if o.Handle == 0 {
		return newMessage(unix.NFT_MSG_DELCHAIN, 0, o.Table, "", chainAttrs(o.Table, o.Chain)).About(o)
	}
	handle := attr(unix.NFTA_RULE_HANDLE, binary.BigEndian.AppendUint64(nil, o.Handle))
	return newMessage(unix.NFT_MSG_DELRULE, 0, o.Table, "", ruleAttrs(o.Table, o.Chain), handle).About(o)
}

// Set describes a set, or a map if its elements have values. The numbers of the
// types are nft's; the kernel keeps them so that nft can list the set.
type Set struct {
	Table              Table
	Name               string
	KeyType, KeySize   uint32
	DataType, DataSize uint32 // of a map
	// HostByteOrder makes nft read a key as text rather than as a number.
	HostByteOrder bool
}

// NewSet creates the set if it is missing. The id is unique in its transaction.
func NewSet(s Set, id uint32) Message {
	attrs := slices.Concat(str(unix.NFTA_SET_TABLE, s.Table.Name), str(unix.NFTA_SET_NAME, s.Name), number(unix.NFTA_SET_ID, id),
		number(unix.NFTA_SET_KEY_TYPE, s.KeyType), number(unix.NFTA_SET_KEY_LEN, s.KeySize))
	flags := uint32(0)
	if s.DataSize > 0 {
		flags = unix.NFT_SET_MAP
		attrs = slices.Concat(attrs, number(unix.NFTA_SET_DATA_TYPE, s.DataType), number(unix.NFTA_SET_DATA_LEN, s.DataSize))
	}
	if s.HostByteOrder {
		const keyByteOrder, host = 0, 1
		attrs = append(attrs, attr(unix.NFTA_SET_USERDATA, []byte{keyByteOrder, 4}, Native32(host))...)
	}
	return newMessage(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, s.Table, "set "+s.Table.String()+" "+s.Name, attrs, number(unix.NFTA_SET_FLAGS, flags))
}

// Element is an element of a set or map. Key and Value are bytes.
type Element struct {
	Set, Key, Value, Comment string
}

// NewElement adds an element. If one with its key exists, an exclusive addition
// fails, and another leaves that element as it is. Only the caller knows how to
// print a key: see [Message.About].
func NewElement(t Table, e Element, exclusive bool) Message {
	m := e.message(t, unix.NFT_MSG_NEWSETELEM, true)
	if m.flags = unix.NLM_F_CREATE; exclusive {
		m.flags |= unix.NLM_F_EXCL
	}
	return m
}

// DeleteElement deletes the element that has e's key.
func DeleteElement(t Table, e Element) Message { return e.message(t, unix.NFT_MSG_DELSETELEM, false) }

func (e Element) message(t Table, typ int, whole bool) Message {
	elem := append(make([][]byte, 0, 3), value(unix.NFTA_SET_ELEM_KEY, []byte(e.Key)))
	if whole && e.Value != "" {
		elem = append(elem, value(unix.NFTA_SET_ELEM_DATA, []byte(e.Value)))
	}
	if whole && e.Comment != "" {
		elem = append(elem, attr(unix.NFTA_SET_ELEM_USERDATA, userComment(e.Comment)))
	}
	return newMessage(typ, 0, t, "", str(unix.NFTA_SET_ELEM_LIST_TABLE, t.Name), str(unix.NFTA_SET_ELEM_LIST_SET, e.Set),
		nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS, nested(unix.NFTA_LIST_ELEM, elem...)))
}
