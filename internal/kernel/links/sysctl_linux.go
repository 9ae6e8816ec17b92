package links

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/thread"
	"github.com/embedcni/cni/netns"
)

// Sysctl is a kernel setting in a namespace.
type Sysctl struct {
	// Path is below /proc/sys, with slashes, because an interface's name may have
	// dots.
	Path, Value string
	// Optional settings may be missing (a kernel without IPv6) or read-only (a
	// read-only /proc/sys), because nothing depends on them.
	Optional bool
}

func (s Sysctl) path() string { return filepath.Join("/proc/sys", s.Path) }

// SetSysctls changes the settings that do not have their value yet, in order, in ns, the
// namespace of c. It reads those of interfaces by netlink, and enters the namespace once to
// change the others.
func SetSysctls(c *Conn, ns *netns.Handle, settings ...Sysctl) error {
	var missing []Sysctl
	for _, s := range settings {
		if name, _, _, ok := s.ofInterface(); ok {
			l, err := c.Link(name)
			if err != nil && !NotFound(err) {
				return fmt.Errorf("in namespace %s: %w", ns.ID(), err)
			}
			if l.Has(s) {
				continue
			}
		}
		missing = append(missing, s)
	}
	return WriteSysctls(ns, missing...)
}

// WriteSysctls writes settings that are known to differ.
func WriteSysctls(ns *netns.Handle, settings ...Sysctl) error {
	if len(settings) == 0 {
		return nil
	}
	return saying(fmt.Sprintf("in namespace %s", ns.ID()), thread.In(ns, func() error { return writeSysctls(settings) }))
}

// Forward returns the setting that makes a namespace forward packets of a
// family between its interfaces.
func Forward(v6 bool) Sysctl {
	if v6 {
		return Sysctl{Path: "net/ipv6/conf/all/forwarding", Value: "1"}
	}
	return Sysctl{Path: "net/ipv4/ip_forward", Value: "1"}
}

// writeSysctls writes the settings in the namespace of the calling thread.
func writeSysctls(settings []Sysctl) error {
	for _, s := range settings {
		if err := s.write(); err != nil && !(s.Optional && inaccessible(err)) {
			return fmt.Errorf("set sysctl %s to %s: %w", s.Path, s.Value, err)
		}
	}
	return nil
}

// inaccessible reports whether an error means that a setting is missing or may not be
// changed.
func inaccessible(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS)
}

// write writes without reading first, which would cost as much. Only if writing
// is denied does it read: the setting may already have its value.
func (s Sysctl) write() error {
	f, err := os.OpenFile(s.path(), os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(s.Value)
		err = joined.Errors(err, f.Close())
	}
	if err == nil {
		return nil
	}
	if is, unread := os.ReadFile(s.path()); unread == nil && string(bytes.TrimSpace(is)) == s.Value {
		return nil
	}
	return err
}

// Settings are the settings of an interface below net/ipv4/conf/<interface> and
// net/ipv6/conf/<interface> in /proc/sys, as far as the kernel sends them with
// the interface. That costs nothing. Opening a file below /proc/sys/net takes
// longer the more namespaces have one of its name: hundreds of µs at a thousand.
type Settings struct {
	v4, v6 []uint32
	// addrGenMode selects how the kernel derives the link-local address. It is 0
	// without IPv6.
	addrGenMode uint8
}

// The positions of settings: IPV4_DEVCONF_* (<linux/ip.h>), which begin at 1, less one,
// and DEVCONF_* (<linux/ipv6.h>).
var (
	settings4 = map[string]int{"forwarding": 0, "arp_notify": 21, "route_localnet": 25}
	settings6 = map[string]int{
		"forwarding": 0, "accept_ra": 3, "disable_ipv6": 26,
		"accept_dad": 27, "ndisc_notify": 29, "keep_addr_on_down": 42, "enhanced_dad": 46,
	}
)

// parse reads an IFLA_AF_SPEC.
func (s *Settings) parse(families attributes) {
	s.v4 = numbers(families.nest(unix.AF_INET).get(unix.IFLA_INET_CONF))
	v6 := families.nest(unix.AF_INET6)
	s.v6 = numbers(v6.get(unix.IFLA_INET6_CONF))
	s.addrGenMode = uint8(v6.num(unix.IFLA_INET6_ADDR_GEN_MODE))
}

func numbers(b []byte) (all []uint32) {
	for ; len(b) >= 4; b = b[4:] {
		all = append(all, native.Uint32(b))
	}
	return all
}

// Has reports whether a setting is known to have the wanted value, or is not
// needed because the interface has no IPv6.
func (l Link) Has(s Sysctl) bool {
	name, v6, setting, ok := s.ofInterface()
	if !ok || name != l.Name {
		return false
	}
	all, positions := l.Settings.v4, settings4
	if v6 {
		all, positions = l.Settings.v6, settings6
	}
	if v6 && s.Optional && all == nil && l.Settings.v4 != nil {
		return true
	}
	n, ok := positions[setting]
	return ok && n < len(all) && strconv.Itoa(int(int32(all[n]))) == s.Value
}

// ofInterface splits the path of an interface's setting.
func (s Sysctl) ofInterface() (name string, v6 bool, setting string, ok bool) {
	parts := strings.Split(s.Path, "/")
	if len(parts) != 5 || parts[0] != "net" || parts[2] != "conf" || slices.Contains([]string{"all", "default"}, parts[3]) {
		return "", false, "", false
	}
	return parts[3], parts[1] == "ipv6", parts[4], parts[1] == "ipv4" || parts[1] == "ipv6"
}

// Set4 changes a setting of an interface below net/ipv4/conf that the kernel
// accepts by number. It accepts IPv6 settings only through /proc/sys. Set4
// ignores the errors in fine.
func Set4(c *Conn, index int, name string, value uint32, fine ...error) error {
	n, ok := settings4[name]
	if !ok {
		n = -1 // which the kernel refuses
	}
	m := request(unix.RTM_SETLINK, unix.NLM_F_ACK, ifinfo(index, 0, 0),
		nest(unix.IFLA_AF_SPEC, nest(unix.AF_INET, nest(unix.IFLA_INET_CONF, u32(uint16(n+1), value)))))
	return c.do(m, nil, fmt.Sprintf("set %s of interface %d to %d", name, index, value), fine...)
}

// <linux/netconf.h>
const (
	netconfIfIndex    = 1  // NETCONFA_IFINDEX
	netconfForwarding = 2  // NETCONFA_FORWARDING
	netconfAll        = -1 // NETCONFA_IFINDEX_ALL
)

// Forwarding reports whether the namespace forwards between its interfaces:
// net.ipv4.ip_forward and net.ipv6.conf.all.forwarding. It is false if the
// kernel does not say.
func Forwarding(c *Conn, v6 bool) (on bool) {
	family, all := nl.NewRtGenMsg(), netconfAll
	family.Family = unix.AF_INET
	if v6 {
		family.Family = unix.AF_INET6
	}
	m := request(unix.RTM_GETNETCONF, 0, family, u32(netconfIfIndex, uint32(all)))
	_ = c.execute(m, func(m message) { on = m.num(netconfForwarding) == 1 })
	return on
}
