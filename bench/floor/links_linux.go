package floor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// linkHeader encodes struct ifinfomsg. It sets the flags of set among those of
// change.
func linkHeader(index int, set, change uint32) []byte {
	b := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(b[4:], uint32(index))
	binary.NativeEndian.PutUint32(b[8:], set)
	binary.NativeEndian.PutUint32(b[12:], change)
	return b
}

// addPair writes the message that creates a veth pair in place: the host's end
// is up and a port of the bridge, the other end is in the container. The
// container's end cannot be created up, because it is created before its peer.
func (m *message) addPair(host, inside string, bridge int, container *os.File) {
	m.begin(unix.RTM_NEWLINK, flagAck|flagCreate|flagExcl, linkHeader(0, unix.IFF_UP, unix.IFF_UP))
	m.text(unix.IFLA_IFNAME, host)
	if bridge != 0 {
		m.uint32(unix.IFLA_MASTER, uint32(bridge))
	}
	m.nest(unix.IFLA_LINKINFO, func() {
		m.text(unix.IFLA_INFO_KIND, "veth")
		m.nest(unix.IFLA_INFO_DATA, func() {
			m.nest(1 /* VETH_INFO_PEER */, func() {
				m.b = append(m.b, linkHeader(0, 0, 0)...)
				m.text(unix.IFLA_IFNAME, inside)
				m.uint32(unix.IFLA_NET_NS_FD, uint32(container.Fd()))
			})
		})
	})
	m.end()
}

func (m *message) addBridge(name string) {
	m.begin(unix.RTM_NEWLINK, flagAck|flagCreate|flagExcl, linkHeader(0, unix.IFF_UP, unix.IFF_UP))
	m.text(unix.IFLA_IFNAME, name)
	m.nest(unix.IFLA_LINKINFO, func() { m.text(unix.IFLA_INFO_KIND, "bridge") })
	m.end()
}

func (m *message) up(name string) {
	m.begin(unix.RTM_NEWLINK, flagAck, linkHeader(0, unix.IFF_UP, unix.IFF_UP))
	m.text(unix.IFLA_IFNAME, name)
	m.end()
}

// hairpin lets a bridge port send packets back to where they came from.
func (m *message) hairpin(port string) {
	const slaveKind, slaveData, mode = 4, 5, 4 // IFLA_INFO_SLAVE_KIND, IFLA_INFO_SLAVE_DATA, IFLA_BRPORT_MODE
	m.begin(unix.RTM_NEWLINK, flagAck, linkHeader(0, 0, 0))
	m.text(unix.IFLA_IFNAME, port)
	m.nest(unix.IFLA_LINKINFO, func() {
		m.text(slaveKind, "bridge")
		m.nest(slaveData, func() { m.attr(mode, []byte{1}) })
	})
	m.end()
}

func (m *message) getLink(name string) {
	m.begin(unix.RTM_GETLINK, flagAck, linkHeader(0, 0, 0))
	m.text(unix.IFLA_IFNAME, name)
	m.end()
}

func (m *message) deleteLink(name string) {
	m.begin(unix.RTM_DELLINK, flagAck, linkHeader(0, 0, 0))
	m.text(unix.IFLA_IFNAME, name)
	m.end()
}

// addAddr writes an address without duplicate address detection: the allocator
// guarantees that addresses are unique.
func (m *message) addAddr(index int, p netip.Prefix) {
	header := make([]byte, unix.SizeofIfAddrmsg)
	header[0], header[1], header[2] = family(p.Addr()), byte(p.Bits()), unix.IFA_F_NODAD
	if p.Addr().Is4() {
		header[2] = 0
	}
	binary.NativeEndian.PutUint32(header[4:], uint32(index))
	m.begin(unix.RTM_NEWADDR, flagAck|flagCreate|flagExcl, header)
	m.attr(unix.IFA_LOCAL, p.Addr().AsSlice())
	m.attr(unix.IFA_ADDRESS, p.Addr().AsSlice())
	m.end()
}

// addRoute writes a route through a gateway, or to the link itself if the
// gateway is not valid.
func (m *message) addRoute(index int, to netip.Prefix, gateway netip.Addr) {
	header := make([]byte, unix.SizeofRtMsg)
	header[0], header[1] = family(to.Addr()), byte(to.Bits())
	header[4], header[5] = unix.RT_TABLE_MAIN, unix.RTPROT_BOOT
	header[6], header[7] = unix.RT_SCOPE_UNIVERSE, unix.RTN_UNICAST
	if !gateway.IsValid() {
		header[6] = unix.RT_SCOPE_LINK
	}
	m.begin(unix.RTM_NEWROUTE, flagAck|flagCreate|flagExcl, header)
	if to.Bits() > 0 {
		m.attr(unix.RTA_DST, to.Addr().AsSlice())
	}
	if gateway.IsValid() {
		m.attr(unix.RTA_GATEWAY, gateway.AsSlice())
	}
	m.uint32(unix.RTA_OIF, uint32(index))
	m.end()
}

func family(a netip.Addr) byte {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// link holds the attributes of an interface that this package reads.
type link struct{ index int }

// find runs the messages of m and then reads an interface.
func (s *socket) find(m *message, name string) (link, error) {
	m.getLink(name)
	replies, err := s.do(m)
	if err != nil {
		return link{}, fmt.Errorf("find interface %s: %w", name, err)
	}
	for _, r := range replies {
		if r.Header.Type != unix.RTM_NEWLINK || len(r.Data) < unix.SizeofIfInfomsg {
			continue
		}
		return link{index: int(binary.NativeEndian.Uint32(r.Data[4:]))}, nil
	}
	return link{}, errors.New("find interface " + name + ": no answer")
}
