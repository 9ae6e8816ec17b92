// Package links makes and changes network interfaces, their addresses and
// routes over rtnetlink, from outside of the namespace that they are in. It is
// the only way to the kernel for these: other packages use vishvananda/netlink
// for traffic control and conntrack only.
package links

import (
	"errors"

	"golang.org/x/sys/unix"
)

// NotFound reports whether an error means that there is no such interface.
func NotFound(err error) bool { return errors.Is(err, unix.ENODEV) }
