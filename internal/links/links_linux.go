// Package links creates and changes network interfaces, their addresses and
// routes over rtnetlink, from outside their namespace, and deletes UDP flows from
// conntrack. No other package does so: bandwidth alone uses netlink.Handle, for
// traffic control.
package links

import (
	"errors"

	"golang.org/x/sys/unix"
)

// NotFound reports whether an error means that there is no such interface.
func NotFound(err error) bool { return errors.Is(err, unix.ENODEV) }
