package floor

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

const ifName = "eth0"

// Options describe a container's network.
type Options struct {
	Network  string         // names the bridge and the address directory
	DataDir  string         // host-local's directory
	Prefixes []netip.Prefix // a container gets an address from each
	Ptp      bool           // a veth pair of its own instead of a bridge port
	Filter   bool           // masquerading and a host port
	Forward  bool           // with Filter: firewall's rules of iptables, too
	Hairpin  bool           // the bridge port is in hairpin mode
}

// Host is the process's network namespace with one network.
type Host struct {
	network, dataDir string
	prefixes         []netip.Prefix
	ptp, filter      bool
	forward, hairpin bool
	bridge           int

	mu      sync.Mutex
	sockets map[int][]*socket     // idle sockets by protocol
	have    map[string]attachment // by container
}

// attachment holds the data that Del needs.
type attachment struct {
	addrs []netip.Prefix
	port  uint16
	host  string
	rules []uint64 // handles
}

// Open creates the bridge. If o.Filter is set, the nftables table of Script
// must exist already, and with o.Forward that of ForwardScript. Close closes the sockets and leaves the bridge.
func Open(o Options) (_ *Host, err error) {
	h := &Host{
		network: o.Network, dataDir: o.DataDir, prefixes: o.Prefixes, ptp: o.Ptp, filter: o.Filter,
		forward: o.Forward, hairpin: o.Hairpin,
		sockets: make(map[int][]*socket), have: make(map[string]attachment),
	}
	if o.Ptp || len(o.Prefixes) == 0 {
		return h, nil
	}
	err = h.with(unix.NETLINK_ROUTE, func(s *socket) error {
		m := &message{}
		m.addBridge(o.Network)
		l, err := s.find(m, o.Network)
		if err != nil {
			return err
		}
		h.bridge = l.index
		m = &message{}
		for _, p := range o.Prefixes {
			m.addAddr(l.index, gateway(p))
		}
		_, err = s.do(m)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("bridge %s: %w", o.Network, errors.Join(err, h.Close()))
	}
	return h, nil
}

// gateway returns the first address of a prefix, with the prefix length.
func gateway(p netip.Prefix) netip.Prefix {
	return netip.PrefixFrom(p.Masked().Addr().Next(), p.Bits())
}

// with calls fn with a socket for its exclusive use.
func (h *Host) with(protocol int, fn func(*socket) error) error {
	h.mu.Lock()
	var s *socket
	if free := h.sockets[protocol]; len(free) > 0 {
		s = free[len(free)-1]
		h.sockets[protocol] = free[:len(free)-1]
	}
	h.mu.Unlock()
	if s == nil {
		var err error
		if s, err = open(protocol); err != nil {
			return err
		}
	}
	err := fn(s)
	h.mu.Lock()
	h.sockets[protocol] = append(h.sockets[protocol], s)
	h.mu.Unlock()
	return err
}

// Close closes the sockets.
func (h *Host) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var errs []error
	for protocol, sockets := range h.sockets {
		for _, s := range sockets {
			errs = append(errs, s.close())
		}
		delete(h.sockets, protocol)
	}
	return errors.Join(errs...)
}

// Loopback sets the namespace's lo up or down.
func Loopback(path string, up bool) (err error) {
	container, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, container.Close()) }()
	s, err := openIn(container)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	m := &message{}
	var flag uint32
	if up {
		flag = unix.IFF_UP
	}
	m.begin(unix.RTM_NEWLINK, flagAck, linkHeader(1, flag, unix.IFF_UP)) // lo is always the first
	m.end()
	_, err = s.do(m)
	return err
}

// Add attaches a container. It forwards the host's port to the container.
func (h *Host) Add(id, path string, port uint16) (err error) {
	container, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, container.Close()) }()
	addrs, err := h.reserve(id)
	if err != nil {
		return fmt.Errorf("reserve an address: %w", err)
	}
	a := attachment{addrs: addrs, port: port, host: fmt.Sprintf("floor%d", port)}

	// The packet filter and the links have separate locks in the kernel, so
	// they change concurrently.
	type outcome struct {
		rules []uint64
		err   error
	}
	filtered := make(chan outcome, 1)
	go func() {
		rules, err := h.addFilter(a)
		filtered <- outcome{rules, err}
	}()
	err = h.link(a, container)
	filter := <-filtered
	if err := errors.Join(err, filter.err); err != nil {
		return err
	}
	a.rules = filter.rules
	h.mu.Lock()
	h.have[id] = a
	h.mu.Unlock()
	return nil
}

func (h *Host) link(a attachment, container *os.File) (err error) {
	var host link
	err = h.with(unix.NETLINK_ROUTE, func(s *socket) error {
		m := &message{}
		m.addPair(a.host, ifName, h.bridge, container)
		if h.hairpin {
			m.hairpin(a.host)
		}
		if !h.ptp {
			_, err := s.do(m)
			return err
		}
		host, err = s.find(m, a.host)
		return err
	})
	if err != nil {
		return fmt.Errorf("make the pair: %w", err)
	}
	s, err := openIn(container)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	m := &message{}
	m.up(ifName)
	inside, err := s.find(m, ifName)
	if err != nil {
		return err
	}
	m = &message{}
	for _, p := range a.addrs {
		m.inside(inside.index, p, h.ptp)
	}
	if _, err := s.do(m); err != nil {
		return fmt.Errorf("addresses and routes in the container: %w", err)
	}
	if !h.ptp {
		return nil
	}
	return h.with(unix.NETLINK_ROUTE, func(s *socket) error {
		m := &message{}
		for _, p := range a.addrs {
			only := p.Addr().BitLen()
			m.addAddr(host.index, netip.PrefixFrom(gateway(p).Addr(), only))
			m.addRoute(host.index, netip.PrefixFrom(p.Addr(), only), netip.Addr{})
		}
		_, err := s.do(m)
		return err
	})
}

// inside writes the address and the routes of a container.
func (m *message) inside(index int, p netip.Prefix, ptp bool) {
	gw := gateway(p).Addr()
	all := netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	if gw.Is4() {
		all = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	if ptp {
		only := gw.BitLen()
		m.addAddr(index, netip.PrefixFrom(p.Addr(), only))
		m.addRoute(index, netip.PrefixFrom(gw, only), netip.Addr{})
	} else {
		m.addAddr(index, p)
	}
	m.addRoute(index, all, gw)
}

// addFilter makes the container's objects of the packet filter in one
// transaction, and returns the handles of the rules among them.
func (h *Host) addFilter(a attachment) (rules []uint64, err error) {
	if !h.filter {
		return nil, nil
	}
	want := 0
	replies, err := h.transact(func(m *message) {
		m.elements(unix.NFT_MSG_NEWSETELEM, a.addrs, a.port)
		if h.forward {
			want = m.addForward(a.addrs)
		}
	})
	if err != nil {
		return nil, err
	}
	return handles(replies, want)
}

func (h *Host) deleteFilter(a attachment) error {
	if !h.filter {
		return nil
	}
	_, err := h.transact(func(m *message) {
		m.elements(unix.NFT_MSG_DELSETELEM, a.addrs, a.port)
		m.deleteForward(a.rules)
	})
	return err
}

// transact runs the messages of fill in one transaction.
func (h *Host) transact(fill func(*message)) (replies []syscall.NetlinkMessage, err error) {
	err = h.with(unix.NETLINK_NETFILTER, func(s *socket) (err error) {
		m := &message{}
		m.transaction(func() { fill(m) })
		replies, err = s.do(m)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	return replies, nil
}

// Del detaches a container. The kernel waits for a grace period when a pair is
// removed, and for another when elements are. Del waits for both at once.
func (h *Host) Del(id string) error {
	h.mu.Lock()
	a, ok := h.have[id]
	delete(h.have, id)
	h.mu.Unlock()
	if !ok {
		return fmt.Errorf("container %s is not attached", id)
	}
	filtered := make(chan error, 1)
	go func() { filtered <- h.deleteFilter(a) }()
	released := h.release(a.addrs)
	gone := h.with(unix.NETLINK_ROUTE, func(s *socket) error {
		m := &message{}
		m.deleteLink(a.host)
		_, err := s.do(m)
		return err
	})
	return errors.Join(released, gone, <-filtered)
}
