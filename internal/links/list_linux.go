package links

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// ErrTorn means that a list changed while the kernel sent it, in each of several
// attempts. The last list comes with it; something may be missing in it that was
// there all the time.
var ErrTorn = errors.New("it changed during each attempt to read it")

// mostLists limits the attempts at a list that changes while the kernel sends
// it.
const mostLists = 10

// list asks for a list, and calls read for each of its messages. If the list
// changed while the kernel sent it (NLM_F_DUMP_INTR), list asks again. It calls
// begin before each attempt, which must forget the attempt before.
func (c *Conn) list(m *message, begin func(), read func(body []byte) error) error {
	for range mostLists {
		begin()
		if err := c.execute(m, read); err != nil {
			return err
		}
		if !c.interrupted {
			return nil
		}
	}
	return fmt.Errorf("%w (%d attempts)", ErrTorn, mostLists)
}

// listFamilies asks for the addresses or routes of IPv4, and then of IPv6. Its
// message has a fixed part that begins with the family, and may be completed by
// more. add appends the elements of one message of the answer.
//
// A request for all families at once would keep other users of rtnetlink waiting
// (Linux 6.10 lists each of these two without its lock), and ask families that
// this package cannot read.
func listFamilies[T any](c *Conn, typ uint16, fixed int, more func(*message), add func(all []T, body []byte) ([]T, error)) ([]T, error) {
	var all []T
	var torn error
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		m := newMessage(typ, unix.NLM_F_DUMP, make([]byte, fixed))
		m.b[unix.NLMSG_HDRLEN] = family
		if more != nil {
			more(m)
		}
		before := len(all)
		err := c.list(m, func() { all = all[:before] }, func(body []byte) (err error) {
			if len(body) < fixed {
				return errTruncated
			}
			// A kernel without IPv6 answers with all families.
			if body[0] == family {
				all, err = add(all, body)
			}
			return err
		})
		switch {
		case errors.Is(err, ErrTorn):
			torn = err
		case errors.Is(err, unix.EOPNOTSUPP): // a kernel without IPv6
		case err != nil:
			return nil, err
		}
	}
	return all, torn
}
