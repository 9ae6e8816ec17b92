package nft

import (
	"context"
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/notify"
	"github.com/embedcni/cni/netns"
)

// Listener reports objects of a namespace that are deleted. One goroutine at a time may
// use it.
type Listener struct{ socket *notify.Socket }

// groupTables is NFNLGRP_NFTABLES of linux/netfilter/nfnetlink.h.
const groupTables = 7

// Listen begins to watch for changes in a namespace. The caller closes the Listener.
// The size of the buffer is that of [notify.Open].
func Listen(ns *netns.Handle, buffer int) (*Listener, error) {
	s, err := notify.Open(ns, unix.NETLINK_NETFILTER, 1<<(groupTables-1), buffer)
	if err != nil {
		return nil, err
	}
	return &Listener{s}, nil
}

// Announcement is an object that was deleted, a rule that was added, or the end of a
// transaction. Other additions are not reported: reading the elements that other
// programs add to their sets would cost more than all else.
type Announcement struct {
	Added bool // a rule; else the object was deleted
	Table Table
	// Chain and Set name the object, or where it was: a rule of Chain if Rule is set,
	// elements of Set if there are some; the table itself if both are empty.
	Chain, Set string
	Rule       *Rule
	Elements   []Element
	Port       uint32 // of the socket whose transaction it was

	// End is set at the end of each transaction, after its objects.
	End *Transaction
}

// Transaction is a change of the rules.
type Transaction struct {
	Generation uint32
	// Thread is the ID, in the first PID namespace, of the thread that made the change,
	// and Name the name of that thread.
	Thread uint32
	Name   string
}

// Next waits for changes and calls each with them, in order; it is valid until each
// returns. Lost reports whether the kernel has dropped some. If the context ends, the
// error is its cause.
func (l *Listener) Next(ctx context.Context, each func(Announcement)) (lost bool, err error) {
	return l.socket.Next(ctx, func(m notify.Message) {
		if h, ok := readAnnouncement(m); ok {
			each(h)
		}
	})
}

// Close ends the listener.
func (l *Listener) Close() error { return l.socket.Close() }

// readAnnouncement reads an announcement. ok is false if it is about something else.
func readAnnouncement(m notify.Message) (h Announcement, ok bool) {
	if m.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || len(m.Body) < netfilterHeader {
		return h, false
	}
	attrs := body(m.Body)
	name := func(attr uint16) string { return unix.ByteSliceToString(attribute(attrs, attr)) }
	h.Port, h.Table.Family = m.Port, m.Body[0]
	switch m.Type & 0xff {
	case unix.NFT_MSG_DELTABLE:
		h.Table.Name = name(unix.NFTA_TABLE_NAME)
	case unix.NFT_MSG_DELCHAIN:
		h.Table.Name, h.Chain = name(unix.NFTA_CHAIN_TABLE), name(unix.NFTA_CHAIN_NAME)
	case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		r := readRule(m.Body)
		h.Added = m.Type&0xff == unix.NFT_MSG_NEWRULE
		h.Table.Name, h.Chain, h.Rule = name(unix.NFTA_RULE_TABLE), r.Chain, &r
	case unix.NFT_MSG_DELSET:
		h.Table.Name, h.Set = name(unix.NFTA_SET_TABLE), name(unix.NFTA_SET_NAME)
	case unix.NFT_MSG_DELSETELEM:
		h.Table.Name, h.Set = name(unix.NFTA_SET_ELEM_LIST_TABLE), name(unix.NFTA_SET_ELEM_LIST_SET)
		h.Elements = readElements(m.Body)
	case unix.NFT_MSG_NEWGEN:
		h.End = readTransaction(attrs)
	default:
		return h, false
	}
	return h, true
}

// readTransaction reads the attributes of NFT_MSG_NEWGEN.
func readTransaction(attrs []byte) *Transaction {
	end := &Transaction{Name: unix.ByteSliceToString(attribute(attrs, unix.NFTA_GEN_PROC_NAME))}
	for attr, number := range map[uint16]*uint32{unix.NFTA_GEN_ID: &end.Generation, unix.NFTA_GEN_PROC_PID: &end.Thread} {
		if b := attribute(attrs, attr); len(b) == 4 {
			*number = binary.BigEndian.Uint32(b)
		}
	}
	return end
}
