package netfilter

import (
	"encoding/binary"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// Attributes that the kernel has and the package unix does not, of
// linux/netfilter/nf_tables.h.
const (
	attrTableUserdata = 6
	attrChainUserdata = 12
)

// newTable makes the table if it is missing.
func newTable(t nftTable, comment string) message {
	b := appendString(nil, unix.NFTA_TABLE_NAME, t.name)
	b = appendNumber(b, unix.NFTA_TABLE_FLAGS, 0)
	b = appendAttr(b, attrTableUserdata, userComment(0, comment))
	return message{unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, t.family, b, text("table " + t.String())}
}

// hook is where a base chain hangs.
type hook struct {
	typ      string // "nat", "filter"
	number   uint32
	priority int32
}

// Where the chains of the plugins and of this module hang; the priorities are
// those that nft calls dstnat, srcnat and filter.
var (
	hookPrerouting  = hook{"nat", unix.NF_INET_PRE_ROUTING, -100}
	hookOutput      = hook{"nat", unix.NF_INET_LOCAL_OUT, -100}
	hookPostrouting = hook{"nat", unix.NF_INET_POST_ROUTING, 100}
	hookForward     = hook{"filter", unix.NF_INET_FORWARD, 0}
)

// newChain makes the chain if it is missing; h is nil for one that is jumped
// to.
func newChain(t nftTable, name string, h *hook, comment string) message {
	b := appendString(nil, unix.NFTA_CHAIN_TABLE, t.name)
	b = appendString(b, unix.NFTA_CHAIN_NAME, name)
	if h != nil {
		b = appendString(b, unix.NFTA_CHAIN_TYPE, h.typ)
		b = appendNested(b, unix.NFTA_CHAIN_HOOK, func(b []byte) []byte {
			b = appendNumber(b, unix.NFTA_HOOK_HOOKNUM, h.number)
			return appendNumber(b, unix.NFTA_HOOK_PRIORITY, uint32(h.priority))
		})
	}
	if comment != "" {
		b = appendAttr(b, attrChainUserdata, userComment(0, comment))
	}
	return message{unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, t.family, b, text("chain " + t.String() + " " + name)}
}

// flushChain deletes the rules of the chain.
func flushChain(t nftTable, name string) message {
	b := appendString(nil, unix.NFTA_RULE_TABLE, t.name)
	b = appendString(b, unix.NFTA_RULE_CHAIN, name)
	return message{unix.NFT_MSG_DELRULE, 0, t.family, b, text("rules of chain " + t.String() + " " + name)}
}

// newRule adds a rule at the end of the chain.
func newRule(t nftTable, chain string, c code, comment string) message {
	b := appendString(make([]byte, 0, len(c)+256), unix.NFTA_RULE_TABLE, t.name)
	b = appendString(b, unix.NFTA_RULE_CHAIN, chain)
	b = appendNested(b, unix.NFTA_RULE_EXPRESSIONS, func(b []byte) []byte { return append(b, c...) })
	object := "rule " + t.String() + " " + chain
	if comment != "" {
		b = appendAttr(b, unix.NFTA_RULE_USERDATA, userComment(0, comment))
		object = fmt.Sprintf("%s comment %q", object, comment)
	}
	return message{unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE | unix.NLM_F_APPEND, t.family, b, text(object)}
}

// newSet makes a set of the native table if it is missing. The id, which is
// the message's own in the transaction, is not used for anything here.
func newSet(name string, id uint32) message {
	kind, _ := kindOf(name)
	b := appendString(nil, unix.NFTA_SET_TABLE, nativeTable.name)
	b = appendString(b, unix.NFTA_SET_NAME, name)
	flags := uint32(0)
	if kind.value != nil {
		flags = unix.NFT_SET_MAP
	}
	b = appendNumber(b, unix.NFTA_SET_FLAGS, flags)
	b = appendNumber(b, unix.NFTA_SET_KEY_TYPE, kind.key.typ())
	b = appendNumber(b, unix.NFTA_SET_KEY_LEN, uint32(kind.key.size()))
	if kind.value != nil {
		b = appendNumber(b, unix.NFTA_SET_DATA_TYPE, kind.value.typ())
		b = appendNumber(b, unix.NFTA_SET_DATA_LEN, uint32(kind.value.size()))
	}
	b = appendNumber(b, unix.NFTA_SET_ID, id)
	if slices.Equal(kind.key, fields{fieldLink}) {
		// nft reads a name as a number unless it is told that it is in the byte
		// order of the host.
		const keyByteOrder, host = 0, 1
		b = appendAttr(b, unix.NFTA_SET_USERDATA, append([]byte{keyByteOrder, 4}, native32(host)...))
	}
	return message{unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, nativeTable.family, b, text("set " + nativeTable.String() + " " + name)}
}

// add returns the message that makes the element, if there is none of its key.
// What is per bridge and there already stays.
func (e element) add() message {
	m := e.message(unix.NFT_MSG_NEWSETELEM, true)
	if m.flags = unix.NLM_F_CREATE; e.comment != "" {
		m.flags |= unix.NLM_F_EXCL
	}
	return m
}

func (e element) delete() message { return e.message(unix.NFT_MSG_DELSETELEM, false) }
func (e element) get() message    { return e.message(unix.NFT_MSG_GETSETELEM, false) }

func (e element) message(typ uint16, whole bool) message {
	b := appendString(make([]byte, 0, 320), unix.NFTA_SET_ELEM_LIST_TABLE, nativeTable.name)
	b = appendString(b, unix.NFTA_SET_ELEM_LIST_SET, e.set)
	b = appendNested(b, unix.NFTA_SET_ELEM_LIST_ELEMENTS, func(b []byte) []byte {
		return appendNested(b, unix.NFTA_LIST_ELEM, func(b []byte) []byte {
			b = appendValue(b, unix.NFTA_SET_ELEM_KEY, []byte(e.key))
			if whole && e.value != "" {
				b = appendValue(b, unix.NFTA_SET_ELEM_DATA, []byte(e.value))
			}
			if whole && e.comment != "" {
				b = appendAttr(b, unix.NFTA_SET_ELEM_USERDATA, userComment(0, e.comment))
			}
			return b
		})
	})
	return message{typ: typ, family: nativeTable.family, attrs: b, object: e}
}

// deletion returns the message that deletes the object. That for a chain
// deletes the rules in it too.
func (o nftObject) deletion() message {
	if o.handle == 0 {
		b := appendString(nil, unix.NFTA_CHAIN_TABLE, o.table.name)
		b = appendString(b, unix.NFTA_CHAIN_NAME, o.chain)
		return message{unix.NFT_MSG_DELCHAIN, 0, o.table.family, b, o}
	}
	b := appendString(nil, unix.NFTA_RULE_TABLE, o.table.name)
	b = appendString(b, unix.NFTA_RULE_CHAIN, o.chain)
	b = appendAttr(b, unix.NFTA_RULE_HANDLE, binary.BigEndian.AppendUint64(nil, o.handle))
	return message{unix.NFT_MSG_DELRULE, 0, o.table.family, b, o}
}
