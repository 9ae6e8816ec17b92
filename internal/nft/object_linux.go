package nft

import (
	"encoding/binary"
	"fmt"
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
	b := appendString(nil, unix.NFTA_TABLE_NAME, t.Name)
	if comment != "" {
		b = appendNumber(b, unix.NFTA_TABLE_FLAGS, 0)
		b = appendAttr(b, attrTableUserdata, userComment(comment))
	}
	return Message{unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, t.Family, b, text("table " + t.String())}
}

// Hook is the place of a base chain in the packet's path.
type Hook struct {
	Type     string // "nat", "filter"
	Number   uint32
	Priority int32
}

// DestinationNAT is a hook at nft's priority dstnat, for a chain that changes where
// packets go.
func DestinationNAT(number uint32) *Hook {
	return &Hook{Type: "nat", Number: number, Priority: -100}
}

// SourceNAT is the hook postrouting at nft's priority srcnat.
func SourceNAT() *Hook {
	return &Hook{Type: "nat", Number: unix.NF_INET_POST_ROUTING, Priority: 100}
}

// InterfaceName returns the name of an interface in the size that rules and sets
// compare.
func InterfaceName(name string) (string, error) {
	if name == "" || len(name) >= unix.IFNAMSIZ {
		return "", fmt.Errorf("interface name %q: 1 to %d bytes are possible", name, unix.IFNAMSIZ-1)
	}
	return name + strings.Repeat("\x00", unix.IFNAMSIZ-len(name)), nil
}

// inChain names a chain, by the attributes of a message about chains or rules.
func inChain(t Table, chain string, tableAttr, chainAttr uint16) []byte {
	b := appendString(make([]byte, 0, 256), tableAttr, t.Name)
	return appendString(b, chainAttr, chain)
}

// NewChain creates the chain if it is missing. A chain without a hook is only
// jumped to.
func NewChain(t Table, name string, h *Hook) Message {
	b := inChain(t, name, unix.NFTA_CHAIN_TABLE, unix.NFTA_CHAIN_NAME)
	if h != nil {
		b = appendString(b, unix.NFTA_CHAIN_TYPE, h.Type)
		b = appendNested(b, unix.NFTA_CHAIN_HOOK, func(b []byte) []byte {
			b = appendNumber(b, unix.NFTA_HOOK_HOOKNUM, h.Number)
			return appendNumber(b, unix.NFTA_HOOK_PRIORITY, uint32(h.Priority))
		})
	}
	return Message{unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, t.Family, b, text("chain " + t.String() + " " + name)}
}

func getChain(t Table, name string) Message {
	b := inChain(t, name, unix.NFTA_CHAIN_TABLE, unix.NFTA_CHAIN_NAME)
	return Message{unix.NFT_MSG_GETCHAIN, 0, t.Family, b, text("chain " + t.String() + " " + name)}
}

// NewRule adds a rule at the end of the chain.
func NewRule(t Table, chain string, e Exprs, comment string) Message {
	b := inChain(t, chain, unix.NFTA_RULE_TABLE, unix.NFTA_RULE_CHAIN)
	b = appendNested(b, unix.NFTA_RULE_EXPRESSIONS, func(b []byte) []byte { return append(b, e...) })
	object := "rule " + t.String() + " " + chain
	if comment != "" {
		b = appendAttr(b, unix.NFTA_RULE_USERDATA, userComment(comment))
		object = fmt.Sprintf("%s comment %q", object, comment)
	}
	return Message{unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE | unix.NLM_F_APPEND, t.Family, b, text(object)}
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
		b := inChain(o.Table, o.Chain, unix.NFTA_CHAIN_TABLE, unix.NFTA_CHAIN_NAME)
		return Message{unix.NFT_MSG_DELCHAIN, 0, o.Table.Family, b, o}
	}
	b := inChain(o.Table, o.Chain, unix.NFTA_RULE_TABLE, unix.NFTA_RULE_CHAIN)
	b = appendAttr(b, unix.NFTA_RULE_HANDLE, binary.BigEndian.AppendUint64(nil, o.Handle))
	return Message{unix.NFT_MSG_DELRULE, 0, o.Table.Family, b, o}
}

// Delete deletes the objects, all or none, as [Conn.Transact] does.
func (c *Conn) Delete(generation uint32, objects []Object) error {
	msgs := make([]Message, len(objects))
	for i, o := range objects {
		msgs[i] = o.Deletion()
	}
	return c.Transact(msgs, &generation)
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
	b := appendString(nil, unix.NFTA_SET_TABLE, s.Table.Name)
	b = appendString(b, unix.NFTA_SET_NAME, s.Name)
	flags := uint32(0)
	if s.DataSize > 0 {
		flags = unix.NFT_SET_MAP
	}
	b = appendNumber(b, unix.NFTA_SET_FLAGS, flags)
	b = appendNumber(b, unix.NFTA_SET_KEY_TYPE, s.KeyType)
	b = appendNumber(b, unix.NFTA_SET_KEY_LEN, s.KeySize)
	if s.DataSize > 0 {
		b = appendNumber(b, unix.NFTA_SET_DATA_TYPE, s.DataType)
		b = appendNumber(b, unix.NFTA_SET_DATA_LEN, s.DataSize)
	}
	b = appendNumber(b, unix.NFTA_SET_ID, id)
	if s.HostByteOrder {
		const keyByteOrder, host = 0, 1
		b = appendAttr(b, unix.NFTA_SET_USERDATA, append([]byte{keyByteOrder, 4}, Native32(host)...))
	}
	return Message{unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, s.Table.Family, b, text("set " + s.Table.String() + " " + s.Name)}
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

func (e Element) message(t Table, typ uint16, whole bool) Message {
	b := appendString(make([]byte, 0, 320), unix.NFTA_SET_ELEM_LIST_TABLE, t.Name)
	b = appendString(b, unix.NFTA_SET_ELEM_LIST_SET, e.Set)
	b = appendNested(b, unix.NFTA_SET_ELEM_LIST_ELEMENTS, func(b []byte) []byte {
		return appendNested(b, unix.NFTA_LIST_ELEM, func(b []byte) []byte {
			b = appendValue(b, unix.NFTA_SET_ELEM_KEY, []byte(e.Key))
			if whole && e.Value != "" {
				b = appendValue(b, unix.NFTA_SET_ELEM_DATA, []byte(e.Value))
			}
			if whole && e.Comment != "" {
				b = appendAttr(b, unix.NFTA_SET_ELEM_USERDATA, userComment(e.Comment))
			}
			return b
		})
	})
	return Message{typ: typ, family: t.Family, attrs: b}
}
