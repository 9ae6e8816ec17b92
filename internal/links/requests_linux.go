package links

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// Requests collect requests and send them to the kernel together, in order,
// which saves a system call or two for each. Send fills the values that the
// reading methods return.
//
// The kernel continues after a failed request, so Requests are for work that is
// undone as a whole.
type Requests struct {
	c   *Conn
	all []request
}

// request is a message with the handlers of its answer.
type request struct {
	m *message
	// read is called for each message of the answer, and may be nil.
	read func(body []byte) error
	// explain names the failed operation in an error, or returns nil to ignore
	// it. It may be nil.
	explain func(err error) error
}

// Requests begins a collection.
func (c *Conn) Requests() *Requests { return &Requests{c: c} }

// add adds a request. Its error names the operation. The errors in fine are
// ignored.
func (r *Requests) add(m *message, read func([]byte) error, what string, fine ...error) {
	r.all = append(r.all, request{m, read, func(err error) error {
		if slices.ContainsFunc(fine, func(f error) bool { return errors.Is(err, f) }) {
			return nil
		}
		return fmt.Errorf("%s: %w", what, err)
	}})
}

// mostTogether limits the unread answers that the kernel has to buffer: the
// buffer holds about 50 descriptions of interfaces.
const mostTogether = 16

// Send sends the requests, and returns the first error.
func (r *Requests) Send() error {
	all := r.all
	r.all = nil
	for len(all) > 0 {
		n := min(len(all), mostTogether)
		// The kernel produces a list while it is read, and one list at a time.
		if dump := slices.IndexFunc(all[:n], func(q request) bool { return q.m.flags()&unix.NLM_F_DUMP == unix.NLM_F_DUMP }); dump >= 0 {
			n = dump + 1
		}
		if err := r.c.exchange(all[:n]); err != nil {
			return err
		}
		all = all[n:]
	}
	return nil
}

// take reads a message of an answer, and reports whether it is the last one.
func (q request) take(typ uint16, body []byte) (end bool, err error) {
	if typ == unix.NLMSG_ERROR || typ == unix.NLMSG_DONE {
		return true, answer(body)
	}
	if q.read == nil {
		return false, nil
	}
	return q.m.asks(), q.read(body)
}

// errNoAnswer means that the kernel accepted a query and sent no answer.
var errNoAnswer = errors.New("the kernel did not answer")

// outcome returns the first error, explained. A query without an answer is an
// error.
func outcome(all []request, answered []bool, errs []error) error {
	for i, q := range all {
		err := errs[i]
		if err == nil && q.m.asks() && !answered[i] {
			err = errNoAnswer
		}
		if err != nil && q.explain != nil {
			err = q.explain(err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
