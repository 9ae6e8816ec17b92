package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	hostlocal "github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/nft"
)

// The tables that the floor has. A packet costs one lookup, regardless of the number of
// containers, and the accepts are those of a network.
const floorScript = `table inet bench_floor {
	set masq { type ipv4_addr; }
	map ports { type inet_proto . inet_service : ipv4_addr . inet_service; }
	chain ports {
		dnat ip to meta l4proto . th dport map @ports
	}
	chain prerouting {
		type nat hook prerouting priority dstnat;
		fib daddr type local jump ports
	}
	chain output {
		type nat hook output priority -100;
		fib daddr type local jump ports
	}
	chain forward {
		type filter hook forward priority filter;
		ip daddr 10.0.0.0/8 ct state established,related accept
		ip saddr 10.0.0.0/8 accept
	}
	chain postrouting {
		type nat hook postrouting priority srcnat;
		ip saddr @masq ip daddr != 10.0.0.0/8 masquerade
	}
}
`

var floorTable = nft.Table{Family: unix.NFPROTO_INET, Name: "bench_floor"}

// floorRules makes the tables, if the work needs them.
func floorRules(w work) error {
	if !w.filters() {
		return nil
	}
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(floorScript)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, out)
	}
	return nil
}

// floor is one network of the floor: the objects that the kernel must have, made by one
// request each, and nothing else but host-local's reservation.
type floor struct {
	spec   spec
	name   string
	prefix netip.Prefix
	bridge *netlink.Bridge

	rules sync.Mutex // for nft
	nft   *nft.Conn

	mu   sync.Mutex
	have map[string]floored // by container
}

// floored is the data that a DEL needs.
type floored struct {
	addr  netip.Addr
	host  netlink.Link
	rules []nft.Element
}

// floor opens the n-th network. Its socket lives as long as the process.
func (s spec) floor(n int) (attachment, error) {
	f := &floor{spec: s, name: networkName(n), prefix: netip.MustParsePrefix(subnet(n)), have: make(map[string]floored)}
	if s.Work == workLoopback {
		return f.loopback, nil
	}
	var err error
	if f.nft, err = nft.Open(); err != nil {
		return nil, err
	}
	f.bridge = &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: f.name, Flags: net.FlagUp}}
	if err := netlink.LinkAdd(f.bridge); err != nil {
		return nil, err
	}
	return f.do, netlink.AddrAdd(f.bridge, f.address(f.gateway()))
}

func (f *floor) gateway() netip.Addr { return f.prefix.Addr().Next() }

func (f *floor) address(a netip.Addr) *netlink.Addr {
	return &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(f.prefix.Bits(), 32)}}
}

// inside calls fn with a handle of a container's namespace.
func inside(path string, fn func(*netlink.Handle, *os.File) error) (err error) {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	h, err := netlink.NewHandleAt(netns.NsHandle(file.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	return fn(h, file)
}

func (*floor) loopback(_ context.Context, verb string, c container) error {
	lo := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: 1}} // lo is always the first
	return inside(c.Path, func(h *netlink.Handle, _ *os.File) error {
		if verb == verbADD {
			return h.LinkSetUp(lo)
		}
		return h.LinkSetDown(lo)
	})
}

func (f *floor) do(_ context.Context, verb string, c container) error {
	if verb == verbDEL {
		return f.del(c)
	}
	addr, err := f.reserve(c.ID)
	if err != nil {
		return fmt.Errorf("reserve an address: %w", err)
	}
	done := floored{addr: addr}
	if f.spec.Work.filters() {
		done.rules = elements(addr, c.Ports)
	}
	// The packet filter and the links have separate locks in the kernel, so
	// they change concurrently.
	filtered := make(chan error, 1)
	go func() {
		filtered <- f.transact(done.rules, func(e nft.Element) nft.Message { return nft.NewElement(floorTable, e, true) })
	}()
	err = inside(c.Path, func(h *netlink.Handle, file *os.File) (err error) {
		done.host, err = f.link(h, file, fmt.Sprintf("floor%d", c.N), addr)
		return err
	})
	f.mu.Lock()
	f.have[c.ID] = done
	f.mu.Unlock()
	return errors.Join(err, <-filtered)
}

// link makes the pair, its address and route.
func (f *floor) link(h *netlink.Handle, file *os.File, name string, addr netip.Addr) (netlink.Link, error) {
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, Flags: net.FlagUp, MasterIndex: f.bridge.Index},
		PeerName: "eth0", PeerNamespace: netlink.NsFd(file.Fd())}
	if err := netlink.LinkAdd(pair); err != nil {
		return nil, fmt.Errorf("make the pair: %w", err)
	}
	if f.spec.Work == workDefault {
		if err := netlink.LinkSetHairpin(pair, true); err != nil {
			return nil, err
		}
	}
	eth0, err := h.LinkByName("eth0")
	if err != nil {
		return nil, err
	}
	return pair, errors.Join(h.LinkSetUp(eth0), h.AddrAdd(eth0, f.address(addr)),
		h.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: f.gateway().AsSlice()}))
}

// del detaches a container. The kernel waits for a grace period when a pair is removed,
// and for another when elements are. It waits for both at once. Deleting the file of an
// address needs no lock: nobody takes the name while the file exists.
func (f *floor) del(c container) error {
	f.mu.Lock()
	done, ok := f.have[c.ID]
	delete(f.have, c.ID)
	f.mu.Unlock()
	if !ok || done.host == nil {
		return fmt.Errorf("container %s is not attached", c.ID)
	}
	filtered := make(chan error, 1)
	go func() {
		filtered <- f.transact(done.rules, func(e nft.Element) nft.Message { return nft.DeleteElement(floorTable, e) })
	}()
	released := os.Remove(filepath.Join(f.spec.dataDir(), f.name, done.addr.String()))
	return errors.Join(released, netlink.LinkDel(done.host), <-filtered)
}

// transact does one thing with all elements in one transaction. The kernel runs a
// namespace's transactions one after the other.
func (f *floor) transact(elements []nft.Element, one func(nft.Element) nft.Message) error {
	if len(elements) == 0 {
		return nil
	}
	var msgs []nft.Message
	for _, e := range elements {
		msgs = append(msgs, one(e))
	}
	f.rules.Lock()
	defer f.rules.Unlock()
	return f.nft.Transact(msgs, nil)
}

// elements are those of a container: masquerading for its address, and TCP ports of
// the host forwarded to its port 80.
func elements(addr netip.Addr, ports []uint16) []nft.Element {
	ip := string(addr.AsSlice())
	all := []nft.Element{{Set: "masq", Key: ip}}
	for _, port := range ports {
		all = append(all, nft.Element{Set: "ports", Key: "\x06\x00\x00\x00" + padded(port), Value: ip + padded(80)})
	}
	return all
}

// padded encodes a port as a part of a concatenation, which has a multiple of four bytes.
func padded(port uint16) string {
	return string(binary.BigEndian.AppendUint16(nil, port)) + "\x00\x00"
}

// reserve takes the next address. It uses host-local's files and holds host-local's lock.
func (f *floor) reserve(id string) (_ netip.Addr, err error) {
	store, err := hostlocal.New(f.name, f.spec.dataDir())
	if err != nil {
		return netip.Addr{}, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	if err := store.Lock(); err != nil {
		return netip.Addr{}, err
	}
	next := f.gateway().Next()
	if last, err := store.LastReservedIP("0"); err == nil {
		if a, ok := netip.AddrFromSlice(last); ok {
			next = a.Unmap().Next()
		}
	}
	taken, err := store.Reserve(id, "eth0", net.IP(next.AsSlice()), "0")
	if err == nil && !taken {
		err = fmt.Errorf("address %s cannot be reserved", next)
	}
	return next, err
}
