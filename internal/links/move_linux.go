package links

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/netns"
)

// Move is the wanted state of an interface in the namespace that it is moved to.
type Move struct {
	Name  string
	Alias string // empty for none
	Up    bool
}

// Move moves an interface to another namespace with one message, so that it
// never appears there under an old name that is taken. Its index may change, and
// it loses its addresses and routes.
//
// After an error it may be in either namespace, under either name.
func (c *Conn) Move(index int, to *netns.Handle, how Move) error {
	if err := validName(how.Name); err != nil {
		return fmt.Errorf("move to namespace %s as %q: %w", to.ID(), how.Name, err)
	}
	var flags uint32
	if how.Up {
		flags = unix.IFF_UP
	}
	m := request(unix.RTM_SETLINK, unix.NLM_F_ACK, ifinfo(index, flags, unix.IFF_UP),
		namespace(to.File().Fd()), str(unix.IFLA_IFNAME, how.Name), data(unix.IFLA_IFALIAS, []byte(how.Alias)...))
	if err := c.execute(m, nil); err != nil {
		return fmt.Errorf("move to namespace %s as %q: %w", to.ID(), how.Name, err)
	}
	return nil
}
