package container

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/plainfile"
	"github.com/embedcni/cni/internal/kernel/thread"
	"github.com/embedcni/cni/internal/store/ports"
)

// Bound returns those of the claims that a socket in the namespace has: a socket cannot be
// bound to them. One of TCP or SCTP that is bound and does not listen does not count if it
// allows others beside it. Claims that this process may not bind are not examined; they
// go to the log. With an error the known ones are returned.
func (h *Host) Bound(claims []ports.Claim, log *slog.Logger) (taken []ports.Claim, err error) {
	err = thread.In(h.Handle, func() (err error) {
		taken, err = bound(claims, log)
		return err
	})
	return taken, err
}

// BoundByOthers is Bound for the sockets of other processes: schedulers reserve ports by
// listening on them. Nor does UDP in the ephemeral range count: most sockets there ask
// others, and none of them is disturbed, since their answers belong to flows that exist.
func (h *Host) BoundByOthers(claims []ports.Claim, log *slog.Logger) (taken []ports.Claim, err error) {
	taken, err = h.Bound(claims, log)
	if len(taken) == 0 {
		return nil, err
	}
	own, oerr := ownSockets()
	local, lerr := h.LocalPorts()
	return slices.DeleteFunc(taken, func(c ports.Claim) bool {
		return c.Protocol == "udp" && local.IsEphemeral(c.Port) || ports.Overlap([]ports.Claim{c}, own)
	}), joined.Errors(err, oerr, lerr)
}

// bound is Bound in the namespace of the calling thread.
func bound(claims []ports.Claim, log *slog.Logger) (taken []ports.Claim, err error) {
	for _, c := range claims {
		addrs := []netip.Addr{c.Addr}
		if !c.Addr.IsValid() {
			addrs = []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
		}
		for _, addr := range addrs {
			berr := tryBind(c.Protocol, netip.AddrPortFrom(addr, c.Port))
			if errors.Is(berr, unix.EADDRINUSE) {
				taken = append(taken, c)
				break
			}
			switch {
			case berr == nil, slices.ContainsFunc(absent, func(e unix.Errno) bool { return errors.Is(berr, e) }):
			case errors.Is(berr, os.ErrPermission):
				log.Debug("whether a port of the host is in use is not known", "port", c.String(), "error", berr)
			default:
				err = joined.Errors(err, fmt.Errorf("bind %v: %w", c, berr))
			}
		}
	}
	return taken, err
}

// absent are errors that say that no socket can have the address: the kernel lacks the
// protocol or the family, or the host lacks the address.
var absent = []unix.Errno{unix.EAFNOSUPPORT, unix.EPROTONOSUPPORT, unix.ESOCKTNOSUPPORT, unix.EADDRNOTAVAIL}

// tryBind binds a socket, and closes it. Beside one of TCP or SCTP that does not listen,
// other programs can bind theirs meanwhile, if they use SO_REUSEADDR as servers do. For UDP
// that would be shared with any socket that uses it.
func tryBind(protocol string, at netip.AddrPort) (err error) {
	typ, proto := unix.SOCK_STREAM, unix.IPPROTO_TCP
	switch protocol {
	case "udp":
		typ, proto = unix.SOCK_DGRAM, unix.IPPROTO_UDP
	case "sctp":
		// A socket would load the module.
		if _, err := os.Stat("/proc/thread-self/net/sctp"); err != nil {
			return unix.EPROTONOSUPPORT
		}
		proto = unix.IPPROTO_SCTP
	}
	var to unix.Sockaddr = &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}
	family := unix.AF_INET6
	if at.Addr().Is4() {
		family, to = unix.AF_INET, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
	}
	fd, err := unix.Socket(family, typ|unix.SOCK_CLOEXEC, proto)
	if err != nil {
		return err
	}
	defer func() { err = joined.Errors(err, unix.Close(fd)) }()
	if family == unix.AF_INET6 {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
			return err
		}
	}
	if proto != unix.IPPROTO_UDP {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return err
		}
	}
	return unix.Bind(fd, to)
}

// ownSockets returns the claims of this process's sockets, in any namespace. Descriptors
// may be closed meanwhile, or come to mean others: they are only asked.
func ownSockets() (claims []ports.Claim, err error) {
	entries, err := os.ReadDir("/proc/thread-self/fd") // /proc/self is the leading thread, which may have ended
	if err != nil {
		return nil, fmt.Errorf("list the sockets of this process: %w", err)
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		proto, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
		if err != nil {
			continue // not a socket
		}
		var c ports.Claim
		switch proto {
		case unix.IPPROTO_TCP, unix.IPPROTO_MPTCP:
			c.Protocol = "tcp"
		case unix.IPPROTO_UDP:
			c.Protocol = "udp"
		case unix.IPPROTO_SCTP:
			c.Protocol = "sctp"
		default:
			continue
		}
		addr, err := unix.Getsockname(fd)
		if err != nil {
			continue
		}
		switch a := addr.(type) {
		case *unix.SockaddrInet4:
			c.Addr, c.Port = netip.AddrFrom4(a.Addr), uint16(a.Port)
		case *unix.SockaddrInet6:
			c.Addr, c.Port = netip.AddrFrom16(a.Addr).Unmap(), uint16(a.Port)
			if only, err := unix.GetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY); err == nil && only == 0 && c.Addr == netip.IPv6Unspecified() {
				c.Addr = netip.Addr{}
			}
		}
		claims = append(claims, c)
	}
	return claims, nil
}

// LocalPorts returns the ports that the kernel of the namespace gives to sockets that ask
// for none, and those that it must not give.
func (h *Host) LocalPorts() (l ports.Local, err error) {
	var reserved string
	err = thread.In(h.Handle, func() error {
		data, err := plainfile.Read("/proc/sys/net/ipv4/ip_local_port_range")
		if err == nil {
			_, err = fmt.Sscan(string(data), &l.Ephemeral.First, &l.Ephemeral.Last)
		}
		more, rerr := plainfile.Read("/proc/sys/net/ipv4/ip_local_reserved_ports")
		reserved = string(more)
		return joined.Errors(err, rerr)
	})
	if err == nil {
		l.Reserved, err = ports.ParseRows(reserved)
	}
	if err != nil {
		return ports.Local{}, fmt.Errorf("read the local ports of the kernel: %w", err)
	}
	return l, nil
}
