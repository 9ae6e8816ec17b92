package links

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Queues are the queues of an interface (traffic control).
type Queues struct {
	Root      Queue      // of the packets that it sends
	Ingress   Queue      // of the packets that it receives
	Redirects []Redirect // of the packets that it receives, in the order of the kernel
}

// Queue is a queue. The zero Queue means that there is none, or one that the kernel
// does not show.
type Queue struct {
	Kind   string // "tbf", "ingress", "noqueue"
	Handle uint32 // 0: the kernel has made it by itself
	Bucket Bucket // of a tbf
}

// Bucket is the token bucket of a tbf.
type Bucket struct {
	Rate   uint64 // bytes a second
	Limit  uint32 // bytes in the queue
	Buffer uint32 // the burst, in ticks of the packet scheduler
}

// Redirect is a u32 filter that makes another interface send the packets that an
// interface receives.
type Redirect struct {
	To       int // the index of the other interface; 0: it is gone, and the packets are lost
	Handle   uint32
	Class    uint32
	Priority uint16
}

// The fixed parts and attributes of traffic control: struct tcmsg and TCA_*
// (<linux/rtnetlink.h>), TCA_TBF_* and TCA_U32_* (<linux/pkt_sched.h>,
// <linux/pkt_cls.h>), TCA_MIRRED_* (<linux/tc_act/tc_mirred.h>).
const (
	sizeofTcMsg     = 20
	parentRoot      = 0xffffffff // TC_H_ROOT
	parentIngress   = 0xfffffff1 // TC_H_INGRESS
	filtersIngress  = 0xffff0000 // the queue of an ingress or clsact, as a parent of filters
	tcaKind         = 1
	tcaOptions      = 2
	tbfParms        = 1
	tbfRate64       = 4
	sizeofTbfOpt    = 36
	u32ClassID      = 1
	u32Actions      = 7
	actKind         = 1
	actOptions      = 2
	mirredParms     = 2
	sizeofMirred    = 28
	mirredRedirects = 1 // TCA_EGRESS_REDIR

	tcmIfindexMagicBlock = 0xffffffff // TCM_IFINDEX_MAGIC_BLOCK
)

// Queues returns the queues of an interface. It asks for them one by one: a list
// would have those of all interfaces.
func (c *Conn) Queues(index int) (q Queues, err error) {
	r := c.Requests()
	what := fmt.Sprintf("queues of interface %d", index)
	get := func(parent uint32) {
		// Older kernels answer only with NLM_F_ECHO. A queue that they do not show
		// has no answer, or is invalid.
		m := newMessage(unix.RTM_GETQDISC, unix.NLM_F_ECHO, tcmsg(index, parent))
		r.add(m, func(body []byte) error { return q.parse(body) }, what, unix.ENOENT, unix.EINVAL, errNoAnswer)
	}
	get(parentRoot)
	get(parentIngress)
	r.redirects(index, &q)
	return q, r.Send()
}

// redirects asks for the filters of the packets that an interface receives.
func (r *Requests) redirects(index int, q *Queues) {
	m := newMessage(unix.RTM_GETTFILTER, unix.NLM_F_DUMP, tcmsg(index, filtersIngress))
	r.add(m, func(body []byte) error {
		to, ok, err := parseRedirect(body)
		if ok {
			q.Redirects = append(q.Redirects, to)
		}
		return err
	}, fmt.Sprintf("filters of interface %d", index))
}

// tcmsg encodes a struct tcmsg.
func tcmsg(index int, parent uint32) []byte {
	b := make([]byte, sizeofTcMsg)
	native.PutUint32(b[4:], uint32(index))
	native.PutUint32(b[12:], parent)
	return b
}

// parse reads the body of an RTM_NEWQDISC. It ignores queues within others.
func (q *Queues) parse(body []byte) error {
	if len(body) < sizeofTcMsg {
		return errTruncated
	}
	found := Queue{Handle: native.Uint32(body[8:])}
	var options []byte
	err := eachAttr(body[sizeofTcMsg:], func(typ uint16, value []byte) {
		switch typ {
		case tcaKind:
			found.Kind = unix.ByteSliceToString(value)
		case tcaOptions:
			options = value
		}
	})
	if err == nil && found.Kind == "tbf" {
		err = found.Bucket.parse(options)
	}
	switch native.Uint32(body[12:]) {
	case parentRoot:
		q.Root = found
	case parentIngress:
		q.Ingress = found
	}
	return err
}

// parse reads the TCA_OPTIONS of a tbf.
func (b *Bucket) parse(options []byte) error {
	var rate64 uint64
	err := eachAttr(options, func(typ uint16, value []byte) {
		switch {
		case typ == tbfParms && len(value) >= sizeofTbfOpt:
			b.Rate, b.Limit, b.Buffer = uint64(native.Uint32(value[8:])), native.Uint32(value[24:]), native.Uint32(value[28:])
		case typ == tbfRate64 && len(value) >= 8:
			rate64 = native.Uint64(value)
		}
	})
	if rate64 != 0 { // more than 32 bits
		b.Rate = rate64
	}
	return err
}

// parseRedirect reads the body of an RTM_NEWTFILTER. ok is false if the filter does
// not redirect.
func parseRedirect(body []byte) (to Redirect, ok bool, err error) {
	if len(body) < sizeofTcMsg {
		return to, false, errTruncated
	}
	to.Handle, to.Priority = native.Uint32(body[8:]), uint16(native.Uint32(body[16:])>>16)
	var kind string
	var options, actions []byte
	err = eachAttr(body[sizeofTcMsg:], func(typ uint16, value []byte) {
		switch typ {
		case tcaKind:
			kind = unix.ByteSliceToString(value)
		case tcaOptions:
			options = value
		}
	})
	if err != nil || kind != "u32" {
		return to, false, err
	}
	if err = eachAttr(options, func(typ uint16, value []byte) {
		switch typ {
		case u32ClassID:
			to.Class = number(value)
		case u32Actions:
			actions = value
		}
	}); err != nil {
		return to, false, err
	}
	var nested error
	err = eachAttr(actions, func(_ uint16, action []byte) {
		index, redirects, err := parseMirred(action)
		if nested == nil {
			nested = err
		}
		if redirects && !ok {
			to.To, ok = index, true
		}
	})
	if err == nil {
		err = nested
	}
	return to, ok, err
}

// parseMirred reads an action. redirects is false if it is another kind of action.
func parseMirred(action []byte) (index int, redirects bool, err error) {
	var kind string
	var options []byte
	err = eachAttr(action, func(typ uint16, value []byte) {
		switch typ {
		case actKind:
			kind = unix.ByteSliceToString(value)
		case actOptions:
			options = value
		}
	})
	if err != nil || kind != "mirred" {
		return 0, false, err
	}
	err = eachAttr(options, func(typ uint16, value []byte) {
		if typ == mirredParms && len(value) >= sizeofMirred {
			redirects = native.Uint32(value[20:]) == mirredRedirects
			index = int(native.Uint32(value[24:]))
		}
	})
	return index, redirects, err
}
