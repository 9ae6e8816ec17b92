// Package links creates and changes network interfaces, their addresses and
// routes over rtnetlink, from outside their namespace. No other package does so:
// others use netlink.Handle for traffic control and conntrack only.
package links

import (
	"errors"

	"golang.org/x/sys/unix"
)

// NotFound reports whether an error means that there is no such interface.
func NotFound(err error) bool { return errors.Is(err, unix.ENODEV) }
