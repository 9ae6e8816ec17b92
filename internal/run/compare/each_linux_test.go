package compare

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/kernel/parallel"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/run/hostns"
	"github.com/embedcni/cni/internal/sandbox"
	"github.com/embedcni/cni/netns"
)

// hostWith makes a host with a bridge and n containers on it, and returns the
// paths of their namespaces.
func hostWith(t testing.TB, n int) (host *netns.Handle, paths []string) {
	t.Helper()
	host = nettest.New(t)
	nettest.AddBridge(t, host, "br0")
	conn := expect.Value(links.Dial(host))(t)
	defer func() { expect.NoError(t, conn.Close()) }()
	bridge := expect.Value(conn.Link("br0"))(t)
	expect.NoError(t, conn.AddAddress(bridge.Index, netip.MustParsePrefix("10.1.0.1/16"), false))
	expect.NoError(t, conn.AddAddress(bridge.Index, netip.MustParsePrefix("fd00::1/64"), false))
	expect.NoError(t, conn.Up(bridge.Index))
	dir := t.TempDir()
	for i := range n {
		path := filepath.Join(dir, fmt.Sprint(i))
		attach(t, conn, bridge.Index, nettest.At(t, path), i)
		paths = append(paths, path)
	}
	return host, paths
}

// attach gives a container the interface eth0 on a bridge.
func attach(t testing.TB, host *links.Conn, bridge int, ns *netns.Handle, i int) {
	t.Helper()
	conn := expect.Value(links.Dial(ns))(t)
	expect.NoError(t, conn.SetSysctls(ns, links.Sysctl{Path: "net/ipv6/conf/default/accept_dad", Value: "0"}))
	defer func() { expect.NoError(t, conn.Close()) }()
	pair := expect.Value(links.Veth{Name: "eth0", Master: bridge}.Create(host, ns))(t)
	lo := expect.Value(conn.Link("lo"))(t)
	expect.NoError(t, conn.AddAddress(pair.Container.Index, address(i), false))
	expect.NoError(t, conn.AddAddress(pair.Container.Index, netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 14: byte(i >> 8), 15: byte(i)}), 64), false))
	expect.NoError(t, conn.Up(lo.Index))
	expect.NoError(t, conn.Up(pair.Container.Index))
	expect.NoError(t, conn.AddRoute(pair.Container.Index, links.Route{Dst: netip.MustParsePrefix("0.0.0.0/0"), Via: netip.MustParseAddr("10.1.0.1")}, false))
}

// address is that of a container.
func address(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, byte(i>>8) + 1, byte(i)}), 16)
}

// opener opens namespaces by their paths.
type opener struct {
	paths  []string
	open   []*netns.Handle
	opened func(i int) error // is called after opening, if it is set
}

func newOpener(paths []string) *opener {
	return &opener{paths: paths, open: make([]*netns.Handle, len(paths))}
}

func (o *opener) at(i int) (ns *netns.Handle, err error) {
	o.open[i], err = netns.Open(o.paths[i])
	if err == nil && o.opened != nil {
		err = o.opened(i)
	}
	return o.open[i], err
}

func (o *opener) close(i int) error {
	if o.open[i] == nil {
		return nil
	}
	return o.open[i].Close()
}

// openEach opens a view of all namespaces, several at once, and calls use for each.
func (o *opener) openEach(t *testing.T, use func(i int, container Net, err error)) {
	t.Helper()
	host, looks := expect.Value(hostns.NewFinder().Open(""))(t), Dumps()
	defer func() { expect.NoError(t, looks.Close(), host.Close()) }()
	parallel.Each(len(o.paths), runtime.GOMAXPROCS(0), func(i int) {
		ns, err := o.at(i)
		var v *View
		if err == nil {
			v, err = looks.Open(context.Background(), host, ns)
		}
		err = errors.Join(err, o.close(i))
		if v == nil {
			use(i, nil, err)
			return
		}
		use(i, v.Container, err)
		expect.Succeeds(t, "Close", v.Close())
	})
}

func TestEachNamespaceIsAskedOnce(t *testing.T) {
	_, paths := hostWith(t, 40)
	used := make([]atomic.Int32, len(paths))
	newOpener(paths).openEach(t, func(i int, conn Net, err error) {
		used[i].Add(1)
		if err != nil {
			t.Error(err)
			return
		}
		eth0, err := conn.Link("eth0")
		if err != nil {
			t.Error(err)
			return
		}
		have, err := conn.Addresses(eth0.Index)
		if err != nil || !slices.ContainsFunc(have, func(a links.Address) bool { return a.Prefix == address(i) }) {
			t.Errorf("container %d has %v, %v, want %s", i, have, err, address(i))
		}
	})
	for i := range used {
		expect.Same(t, fmt.Sprint("uses of ", i), used[i].Load(), 1)
	}
}

// TestANamespaceVanishesMeanwhile: its error is for it alone, and one that
// vanishes while it is open is still read.
func TestANamespaceVanishesMeanwhile(t *testing.T) {
	const gone, going = 3, 5
	paths := make([]string, 8)
	dir := t.TempDir()
	for i := range paths {
		paths[i] = filepath.Join(dir, fmt.Sprint(i))
		expect.NoError(t, expect.Value(netns.Create(paths[i]))(t).Close())
		if i != gone && i != going {
			t.Cleanup(func() { expect.NoError(t, netns.Remove(paths[i])) })
		}
	}
	expect.NoError(t, netns.Remove(paths[gone]))
	o := newOpener(paths)
	o.opened = func(i int) error {
		if i == going {
			return netns.Remove(paths[i])
		}
		return nil
	}
	o.openEach(t, func(i int, conn Net, err error) {
		if i == gone {
			expect.Is(t, err, fs.ErrNotExist)
			return
		}
		if err == nil {
			_, err = conn.Link("lo")
		}
		expect.That(t, err == nil, "namespace %d: %v", i, err)
	})
}

// TestAClosedNamespaceIsAnErrorForItAlone.
func TestAClosedNamespaceIsAnErrorForItAlone(t *testing.T) {
	const closed = 2
	_, paths := hostWith(t, 6)
	o := newOpener(paths)
	o.opened = func(i int) error {
		if i == closed {
			return o.close(i)
		}
		return nil
	}
	o.openEach(t, func(i int, _ Net, err error) {
		expect.That(t, (i == closed) == errors.Is(err, os.ErrClosed) && (i == closed || err == nil), "namespace %d: %v", i, err)
	})
}

// TestNothingIsLeftOpen: neither descriptors nor threads in other namespaces.
func TestNothingIsLeftOpen(t *testing.T) {
	host, paths := hostWith(t, 30)
	before, home := descriptors(t), expect.Value(netns.ProcessID())(t)
	for range 5 {
		expect.NoError(t, expect.Value(links.Dial(host))(t).Close())
		newOpener(paths).openEach(t, func(i int, _ Net, err error) {
			expect.That(t, err == nil, "%v", err)
			id, err := netns.CurrentID()
			expect.That(t, err == nil && id == home, "between visits a worker is in %s, %v, not in %s", id, err, home)
		})
	}
	expect.Same(t, "descriptors", descriptors(t), before)
	for thread, id := range threads(t) {
		expect.That(t, id == home, "thread %s is in namespace %s, not in %s", thread, id, home)
	}
}

// descriptors returns the number of open descriptors.
func descriptors(t *testing.T) int {
	t.Helper()
	return len(expect.Value(os.ReadDir("/proc/self/fd"))(t))
}

// threads returns the namespaces of this process's threads.
func threads(t *testing.T) map[string]netns.ID {
	t.Helper()
	all := map[string]netns.ID{}
	for _, path := range expect.Value(filepath.Glob("/proc/self/task/*/ns/net"))(t) {
		ns, err := netns.Open(path)
		if errors.Is(err, fs.ErrNotExist) { // the thread has ended
			continue
		}
		expect.NoError(t, err)
		all[path] = ns.ID()
		expect.NoError(t, ns.Close())
	}
	return all
}

func TestMain(m *testing.M) { os.Exit(sandbox.Main(m)) }

// TestViewsShareOneLookAtAHost, and ask each container by themselves.
func TestViewsShareOneLookAtAHost(t *testing.T) {
	host := expect.Value(hostns.NewFinder().Open(""))(t)
	defer func() { expect.NoError(t, host.Close()) }()
	container := nettest.New(t)
	looks := Dumps()
	defer func() { expect.NoError(t, looks.Close()) }()
	const n = 20
	views := make([]*View, n)
	parallel.Each(n, n, func(i int) {
		var err error
		views[i], err = looks.Open(context.Background(), host, container)
		expect.That(t, err == nil, "%v", err)
	})
	for i, v := range views {
		expect.That(t, v.Host != nil && v.Host == views[0].Host, "view %d has a look at the host of its own", i)
		expect.That(t, !slices.ContainsFunc(views[:i], func(other *View) bool { return other.Container == v.Container }),
			"view %d asks the container as another one does", i)
	}
	for _, v := range views {
		expect.NoError(t, v.Close())
	}
}
