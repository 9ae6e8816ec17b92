package audit

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// view has the links of the thread's network namespace, by index.
type view map[int]netlink.Link

func listNetlink() (lines []string, err error) {
	links, err := Dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	v := view{}
	for _, l := range links {
		v[l.Attrs().Index] = l
	}
	for _, l := range links {
		lines = append(lines, v.link(l))
	}
	for _, part := range []part{
		{"addresses", listed(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) }, v.addr)},
		{"routes", v.routes},
		{"rules", listed(func() ([]netlink.Rule, error) { return netlink.RuleList(netlink.FAMILY_ALL) }, rule)},
		{"neighbours", listed(func() ([]netlink.Neigh, error) { return netlink.NeighList(0, netlink.FAMILY_ALL) }, v.neigh)},
		{"qdiscs", listed(func() ([]netlink.Qdisc, error) { return netlink.QdiscList(nil) }, v.qdisc)},
	} {
		more, err := part.list()
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", part.name, err)
		}
		lines = append(lines, more...)
	}
	return lines, nil
}

// listed returns a function that lists objects, a line for each one. No line stands for
// one that does not count.
func listed[T any](list func() ([]T, error), text func(T) string) func() ([]string, error) {
	return func() (lines []string, err error) {
		all, err := Dump(list)
		for _, one := range all {
			if l := text(one); l != "" {
				lines = append(lines, l)
			}
		}
		return lines, err
	}
}

// Dump repeats an interrupted netlink listing, because the kernel may have
// omitted existing objects.
func Dump[T any](list func() ([]T, error)) ([]T, error) {
	const attempts = 10
	for range attempts - 1 {
		got, err := list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return got, err
		}
	}
	return list()
}

// word returns "key value", or nothing if the value is empty. Package net prints an
// address or a network that is nil as "<nil>".
func word(key string, value any) string {
	if text := fmt.Sprint(value); text != "" && text != "<nil>" {
		return key + " " + text
	}
	return ""
}

// name returns a link's name, or nothing if the link is not in this namespace.
func (v view) name(index int) string {
	name, _, _ := strings.Cut(v.dev(index), " ")
	return name
}

// dev returns the words for a link's name and kind. [Shared] uses the kind to
// distinguish bridges from containers' interfaces.
func (v view) dev(index int) string {
	l, ok := v[index]
	if !ok {
		return ""
	}
	return l.Attrs().Name + " type " + kind(l)
}

func kind(l netlink.Link) string {
	if l.Attrs().Flags&net.FlagLoopback != 0 {
		return "loopback"
	}
	return l.Type()
}

func (v view) link(l netlink.Link) string {
	a := l.Attrs()
	state := "down"
	if a.Flags&net.FlagUp != 0 {
		state = "up"
	}
	// The parent of a veth is its peer. The peer's index usually belongs to
	// another namespace and could match one of ours.
	parent := ""
	if a.NetNsID < 0 && kind(l) != "veth" {
		parent = v.name(a.ParentIndex)
	}
	return line("link", v.dev(a.Index), word("master", v.name(a.MasterIndex)), word("parent", parent),
		fmt.Sprintf("mtu %d", a.MTU), state, word("alias", a.Alias))
}

func (v view) addr(a netlink.Addr) string {
	if automatic(a) {
		return ""
	}
	peer := a.Peer.String()
	if peer == a.IPNet.String() {
		peer = ""
	}
	return line("addr", v.dev(a.LinkIndex), a.IPNet.String(), word("peer", peer))
}

// automatic reports whether the kernel created the address by itself, some time
// after a link came up: a link-local address derived from the hardware address
// (RFC 4291, appendix A) or from a secret (RFC 7217).
func automatic(a netlink.Addr) bool {
	ip := a.IP.To16()
	if a.IP.To4() != nil || !ip.IsLinkLocalUnicast() {
		return false
	}
	return ip[11] == 0xff && ip[12] == 0xfe || a.Flags&unix.IFA_F_STABLE_PRIVACY != 0
}

func rule(r netlink.Rule) string {
	if r.Priority == 0 || r.Table == unix.RT_TABLE_MAIN && r.Priority == 32766 ||
		r.Table == unix.RT_TABLE_DEFAULT && r.Priority == 32767 {
		return "" // present in every new namespace
	}
	family, mark := "inet", ""
	if r.Family == unix.AF_INET6 {
		family = "inet6"
	}
	if r.Mark != 0 {
		mark = fmt.Sprintf("%#x", r.Mark)
	}
	return line("rule", family, fmt.Sprint(r.Priority), word("from", r.Src), word("to", r.Dst),
		word("iif", r.IifName), word("oif", r.OifName), word("mark", mark), fmt.Sprintf("table %d", r.Table))
}

func (v view) neigh(n netlink.Neigh) string {
	// Other entries come and go with traffic.
	if n.State&unix.NUD_PERMANENT == 0 || n.IP == nil {
		return ""
	}
	return line("neigh", v.name(n.LinkIndex), n.IP.String(), n.HardwareAddr.String())
}

func (v view) qdisc(q netlink.Qdisc) string {
	a := q.Attrs()
	// Handle 0 is a default that the kernel attached with the link.
	if a.Handle == 0 {
		return ""
	}
	handle := netlink.HandleStr(a.Handle)
	// The kernel allocates handles from the upper half.
	if a.Handle>>31 != 0 && a.Handle < netlink.HANDLE_INGRESS&0xffff0000 {
		handle = "auto"
	}
	return line("qdisc", v.name(a.LinkIndex), q.Type(), handle, word("parent", netlink.HandleStr(a.Parent)))
}
