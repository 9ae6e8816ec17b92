package links

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// Requests are collected by their methods and go to the kernel together, in this
// order, which spares a system call or
// two for each. What a method that reads returns is filled by Send.
//
// The kernel goes on after a request that fails, so they are for work that is taken
// back as a whole.
type Requests struct {
	c   *Conn
	all []request
}

// request is a message and the handlers of its answer.
type request struct {
	m *message
	// read is called for the messages that answer, and may be nil.
	read func(body []byte) error
	// explain adds the failed operation to an error, or returns nil if the error
	// is fine; it may be nil.
	explain func(err error) error
}

// Requests begins a collection.
func (c *Conn) Requests() *Requests { return &Requests{c: c} }

// add adds a request. Its error names the operation; errors among fine are none.
func (r *Requests) add(m *message, read func([]byte) error, what string, fine ...error) {
	r.all = append(r.all, request{m, read, func(err error) error {
		if slices.ContainsFunc(fine, func(f error) bool { return errors.Is(err, f) }) {
			return nil
		}
		return fmt.Errorf("%s: %w", what, err)
	}})
}

// mostTogether bounds how many unread answers the kernel has to keep: its buffer for them holds some 50 descriptions of interfaces.
const mostTogether = 16

// Send executes the requests, and returns the first error.
func (r *Requests) Send() error {
	all := r.all
	r.all = nil
	for len(all) > 0 {
		n := min(len(all), mostTogether)
		// The kernel lists on while it is read, and one list at a time.
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

// take reads a message that answers, and reports whether it is the last one.
func (q request) take(typ uint16, body []byte) (end bool, err error) {
	if typ == unix.NLMSG_ERROR || typ == unix.NLMSG_DONE {
		return true, answer(body)
	}
	if q.read == nil {
		return false, nil
	}
	return q.m.asks(), q.read(body)
}

// outcome is the first error, explained. A request that asks has an answer.
func outcome(all []request, answered []bool, errs []error) error {
	for i, q := range all {
		err := errs[i]
		if err == nil && q.m.asks() && !answered[i] {
			err = errors.New("the kernel did not answer")
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
