package look

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
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/thread"
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
	up := conn.Requests()
	up.AddAddress(bridge.Index, netip.MustParsePrefix("10.1.0.1/16"), 0)
	up.AddAddress(bridge.Index, netip.MustParsePrefix("fd00::1/64"), 0)
	up.Up(bridge.Index)
	expect.NoError(t, up.Send())
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
	conn := expect.Value(links.Dial(ns, links.Sysctl{Path: "net/ipv6/conf/default/accept_dad", Value: "0"}))(t)
	defer func() { expect.NoError(t, conn.Close()) }()
	pair := expect.Value(links.Veth{Name: "eth0", Master: bridge}.Create(host, ns))(t)
	lo := expect.Value(conn.Link("lo"))(t)
	do := conn.Requests()
	do.AddAddress(pair.Container.Index, address(i), 0)
	do.AddAddress(pair.Container.Index, netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 14: byte(i >> 8), 15: byte(i)}), 64), 0)
	do.Up(lo.Index)
	do.Up(pair.Container.Index)
	do.AddRoute(pair.Container.Index, links.Route{Dst: netip.MustParsePrefix("0.0.0.0/0"), Via: netip.MustParseAddr("10.1.0.1")}, false)
	expect.NoError(t, do.Send())
}

// address is that of a container.
func address(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, byte(i>>8) + 1, byte(i)}), 16)
}

// opener opens namespaces by their paths, and counts those that are open.
type opener struct {
	paths []string
	open  []*netns.Handle
}

func newOpener(paths []string) *opener { return &opener{paths, make([]*netns.Handle, len(paths))} }

func (o *opener) at(i int) (ns *netns.Handle, err error) {
	o.open[i], err = netns.Open(o.paths[i])
	return o.open[i], err
}

func (o *opener) close(i int) error {
	if o.open[i] == nil {
		return nil
	}
	return o.open[i].Close()
}

func TestEachNamespaceIsReadOnce(t *testing.T) {
	_, paths := hostWith(t, 40)
	o := newOpener(paths)
	used := make([]atomic.Int32, len(paths))
	Each(context.Background(), len(paths), o.at, func(i int, seen *Namespace, err error) {
		used[i].Add(1)
		if err := errors.Join(err, o.close(i)); err != nil {
			t.Error(err)
			return
		}
		eth0, err := seen.Link("eth0")
		if err != nil {
			t.Error(err)
			return
		}
		have, err := seen.Addresses(eth0.Index)
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
		ns := expect.Value(netns.Create(paths[i]))(t)
		expect.NoError(t, ns.Close())
		if i != gone && i != going {
			t.Cleanup(func() { expect.NoError(t, netns.Remove(paths[i])) })
		}
	}
	expect.NoError(t, netns.Remove(paths[gone]))
	o := newOpener(paths)
	open := func(i int) (*netns.Handle, error) {
		ns, err := o.at(i)
		if i == going {
			err = errors.Join(err, netns.Remove(paths[i]))
		}
		return ns, err
	}
	Each(context.Background(), len(paths), open, func(i int, seen *Namespace, err error) {
		if i == gone {
			expect.Is(t, err, fs.ErrNotExist)
			return
		}
		if err == nil {
			_, err = seen.Link("lo")
		}
		if err := errors.Join(err, o.close(i)); err != nil {
			t.Errorf("namespace %d: %v", i, err)
		}
	})
}

// TestTheContextEndsMeanwhile: the rest is told why.
func TestTheContextEndsMeanwhile(t *testing.T) {
	_, paths := hostWith(t, 20)
	reason := errors.New("enough")
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	o := newOpener(paths)
	var read, told atomic.Int32
	Each(ctx, len(paths), o.at, func(i int, _ *Namespace, err error) {
		cancel(reason)
		if err == nil {
			read.Add(1)
		} else if errors.Is(err, reason) {
			told.Add(1)
		}
		if err := o.close(i); err != nil {
			t.Error(err)
		}
	})
	if read.Load() == 0 || told.Load() == 0 || int(read.Load()+told.Load()) != len(paths) {
		t.Errorf("read %d, told %d of %d", read.Load(), told.Load(), len(paths))
	}
}

// TestWorkersWithoutAThread: others do their work, or each use gets the reason.
func TestWorkersWithoutAThread(t *testing.T) {
	_, paths := hostWith(t, 10)
	lost := errors.New("no thread")
	for name, test := range map[string]struct {
		without int32 // so many workers
		want    error
	}{"all": {1 << 20, lost}, "one": {1, nil}} {
		if name == "one" && runtime.GOMAXPROCS(0) == 1 {
			t.Logf("%s: there is one worker only", name)
			continue
		}
		o := newOpener(paths)
		var started, uses atomic.Int32
		e := &each{n: len(paths), open: o.at, use: func(i int, _ *Namespace, err error) {
			uses.Add(1)
			if !errors.Is(err, test.want) || o.close(i) != nil {
				t.Errorf("%s: got %v, want %v", name, err, test.want)
			}
		}}
		e.run(context.Background(), func(fn func(*thread.Tour) error) error {
			if started.Add(1) <= test.without {
				return lost
			}
			return thread.OnTour(fn)
		})
		expect.Same(t, name+": uses", int(uses.Load()), len(paths))
	}
}

// TestNothingIsLeftOpen: neither descriptors nor threads in other namespaces.
func TestNothingIsLeftOpen(t *testing.T) {
	host, paths := hostWith(t, 30)
	before, home := descriptors(t), expect.Value(netns.ProcessID())(t)
	for range 5 {
		expect.Value(Read(host))(t)
		o := newOpener(paths)
		Each(context.Background(), len(paths), o.at, func(i int, _ *Namespace, err error) {
			if err := errors.Join(err, o.close(i)); err != nil {
				t.Error(err)
			}
		})
	}
	expect.Same(t, "descriptors", descriptors(t), before)
	for thread, id := range threads(t) {
		if id != home {
			t.Errorf("thread %s is in namespace %s, not in %s", thread, id, home)
		}
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

func BenchmarkRead(b *testing.B) {
	for _, n := range []int{1, 100, 1000} {
		host, paths := hostWith(b, n)
		b.Run(fmt.Sprint("host-", n), func(b *testing.B) {
			for range b.N {
				expect.Value(Read(host))(b)
			}
		})
		b.Run(fmt.Sprint("containers-", n), func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				o := newOpener(paths)
				Each(context.Background(), len(paths), o.at, func(i int, _ *Namespace, err error) {
					if err := errors.Join(err, o.close(i)); err != nil {
						b.Error(err)
					}
				})
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*n), "µs/container")
		})
	}
}
