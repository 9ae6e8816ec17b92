package links

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/netns"
)

// Macvlan is an interface that shares another one, its parent, but has a MAC
// address of its own.
type Macvlan struct {
	Name   string
	Parent int              // the parent's index
	Mode   uint32           // MacvlanBridge or another one
	MAC    net.HardwareAddr // nil lets the kernel choose
	MTU    int              // 0 is the parent's
	// BroadcastQueue limits the waiting broadcasts; 0 is the kernel's default.
	BroadcastQueue uint32
}

// The modes of a macvlan decide how macvlans on one parent reach each other
// (MACVLAN_MODE_*, <linux/if_link.h>).
const (
	MacvlanPrivate  = 1
	MacvlanVEPA     = 2
	MacvlanBridge   = 4
	MacvlanPassthru = 8
)

// Create creates the interface in a container, down, on a parent in the
// namespace of c. The error wraps EEXIST if the container has an interface of
// that name.
//
// The kernel creates it in place under its name. Some kernels require that the
// name is free in the parent's namespace too; then Create uses a random name and
// renames it.
func (v Macvlan) Create(c *Conn, container *netns.Handle) error {
	err := validName(v.Name)
	if err == nil {
		err = v.create(c, container, v.Name)
	}
	if errors.Is(err, unix.EEXIST) {
		if err := absent(container, v.Name); err != nil {
			return err
		}
		err = v.createAndRename(c, container)
	}
	if errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("create interface %q: this kernel has none of type macvlan (CONFIG_MACVLAN), or the parent allows none: %w", v.Name, err)
	}
	if err != nil {
		return fmt.Errorf("create interface %q of type macvlan: %w", v.Name, err)
	}
	return nil
}

func (v Macvlan) create(c *Conn, container *netns.Handle, name string) error {
	own := []attribute{u32(unix.IFLA_MACVLAN_MODE, v.Mode)}
	if v.BroadcastQueue != 0 {
		own = append(own, u32(unix.IFLA_MACVLAN_BC_QUEUE_LEN, v.BroadcastQueue))
	}
	m := createMessage(0, name, u32(unix.IFLA_LINK, uint32(v.Parent)), namespace(container.File().Fd()), info("macvlan", own...))
	if v.MAC != nil {
		m.AddData(data(unix.IFLA_ADDRESS, v.MAC...))
	}
	if v.MTU != 0 {
		m.AddData(u32(unix.IFLA_MTU, uint32(v.MTU)))
	}
	return c.execute(m, nil)
}

func (v Macvlan) createAndRename(c *Conn, container *netns.Handle) (err error) {
	name, err := randomName()
	if err != nil {
		return err
	}
	if err := v.create(c, container, name); err != nil {
		return err
	}
	inside, err := Dial(container)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, inside.Close()) }()
	made, err := inside.Link(name)
	if err != nil {
		return err
	}
	if err := inside.Change(made.Index, Change{Name: v.Name}); err != nil {
		return errors.Join(fmt.Errorf("rename interface %q: %w", name, err), inside.Delete(made.Index))
	}
	return nil
}
