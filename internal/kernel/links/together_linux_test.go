package links

import (
	"fmt"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netns"
)

// crowd is pairs with their host's ends in one namespace, each in another container.
type crowd struct {
	host  *netns.Handle
	inns  []*netns.Handle
	conns []*Conn
	links []Link
}

func newCrowd(t *testing.T, n int) *crowd {
	t.Helper()
	c := &crowd{host: newNS(t, "host")}
	h := mustDial(t, c.host)
	br := must[Link](t)(Bridge{Name: "br0"}.Create(h))
	for i := range n {
		ns := newNS(t, fmt.Sprint("container", i))
		must[Pair](t)(Veth{Name: "eth0", Master: br.Index}.Create(h, ns))
		conn := mustDial(t, ns)
		c.inns, c.conns = append(c.inns, ns), append(c.conns, conn)
		c.links = append(c.links, must[Link](t)(conn.Link("eth0")))
	}
	return c
}

// onHost returns the names of the host's interfaces of a kind.
func (c *crowd) onHost(t *testing.T, kind string) (names []string) {
	t.Helper()
	for _, l := range must[[]Link](t)(mustDial(t, c.host).Links()) {
		if l.Kind == kind {
			names = append(names, l.Name)
		}
	}
	return names
}

// together deletes the pairs from i on while others are being deleted, so that one
// caller deletes all.
func (c *crowd) together(t *testing.T, d *Deletions, from int) (errs []error) {
	t.Helper()
	d.teardowns.Store(manyTeardowns)
	in := c.occupied(d)
	errs = make([]error, len(c.links))
	var all sync.WaitGroup
	var conns Conns
	for i := from; i < len(c.links); i++ {
		all.Go(func() { errs[i] = d.DeletePair(c.conns[i], c.links[i], &conns, c.host) })
	}
	expect.Eventually(t, "all wait", func() bool {
		in.mu.Lock()
		defer in.mu.Unlock()
		return len(in.waiting) == len(c.links)-from
	})
	for range mostLeaders {
		<-in.leaders
	}
	all.Wait()
	expect.NoError(t, conns.Close())
	expect.Same(t, "left", len(in.waiting)+len(in.leaders), 0)
	return errs
}

// occupied makes the host's namespace one in which as many callers delete as may.
func (c *crowd) occupied(d *Deletions) *deleting {
	in := d.of(c.host.ID())
	for range mostLeaders {
		in.leaders <- struct{}{}
	}
	return in
}

// TestPairsAreDeletedTogether: those whose callers wait, and no others: neither a pair
// beside them, nor one of an administrator's group.
func TestPairsAreDeletedTogether(t *testing.T) {
	const kept = 3
	c := newCrowd(t, kept+mostRemovals+10)
	h := mustDial(t, c.host)
	for i, group := range []uint32{0, 7, 1<<30 + 5} {
		m := request(unix.RTM_SETLINK, unix.NLM_F_ACK, ifinfo(c.links[i].Peer.Index, 0, 0), u32(unix.IFLA_GROUP, group))
		expect.NoError(t, h.execute(m, nil))
	}
	var d Deletions
	for i, err := range c.together(t, &d, kept) {
		expect.That(t, err == nil, "pair %d: %v", i, err)
	}
	got := c.onHost(t, "veth")
	expect.That(t, len(got) == kept, "left: %v, want the %d others", got, kept)
	for i := range kept {
		must[Link](t)(c.conns[i].Link("eth0"))
	}
	expect.That(t, d.of(c.host.ID()).group != 0, "they were deleted one by one")
	taken := must[map[uint32]bool](t)(h.groups())
	expect.That(t, taken[7] && taken[1<<30+5], "the groups of others are now %v", taken)
}

// TestTheKernelRefusesAGroup: then each pair is deleted by itself. It refuses because of
// lo, whose index somebody lies about.
func TestTheKernelRefusesAGroup(t *testing.T) {
	c := newCrowd(t, 4)
	c.links[2].Peer.Index = must[Link](t)(mustDial(t, c.host).Link("lo")).Index
	for i, err := range c.together(t, &Deletions{}, 0) {
		expect.That(t, err == nil, "pair %d: %v", i, err)
	}
	expect.Empty(t, "left", c.onHost(t, "veth"))
	must[Link](t)(mustDial(t, c.host).Link("lo"))
}

// TestAMissingPairIsDeleted: one end was deleted meanwhile, of some or of all.
func TestAMissingPairIsDeleted(t *testing.T) {
	for _, gone := range []int{1, 3} {
		c := newCrowd(t, 3)
		for i := range gone {
			expect.NoError(t, c.conns[i].Delete(c.links[i].Index))
		}
		for i, err := range c.together(t, &Deletions{}, 0) {
			expect.That(t, err == nil, "pair %d: %v", i, err)
		}
		expect.Empty(t, "left", c.onHost(t, "veth"))
	}
}

// TestAnEndThatWasMoved: the peer's index is that of another namespace, in which the
// kernel's number of it is another interface's.
func TestAnEndThatWasMoved(t *testing.T) {
	c := newCrowd(t, 3)
	elsewhere := newNS(t, "elsewhere")
	h := mustDial(t, c.host)
	m := request(unix.RTM_SETLINK, unix.NLM_F_ACK, ifinfo(c.links[0].Peer.Index, 0, 0), namespace(elsewhere.File().Fd()))
	expect.NoError(t, h.execute(m, nil))
	c.links[0] = must[Link](t)(c.conns[0].Link("eth0"))
	c.links[0].Peer.Index = c.links[1].Peer.Index // as it can be by chance

	// Nobody ends the deletions that go on.
	var d Deletions
	c.occupied(&d)
	d.teardowns.Store(manyTeardowns)
	done := make(chan error, 1)
	go func() { done <- d.DeletePair(c.conns[0], c.links[0], nil, c.host) }()
	expect.Eventually(t, "it does not wait for others", func() bool { return len(done) == 1 })
	expect.NoError(t, <-done)
	_, err := c.conns[0].Link("eth0")
	expect.That(t, NotFound(err), "the pair is there: %v", err)
	must[Link](t)(c.conns[1].Link("eth0"))
	got := c.onHost(t, "veth")
	expect.That(t, len(got) == 2, "left: %v, want 2", got)
}

// TestManyDeleteAtOnce, as they come.
func TestManyDeleteAtOnce(t *testing.T) {
	c := newCrowd(t, 40)
	var d Deletions
	d.teardowns.Store(manyTeardowns)
	var all sync.WaitGroup
	errs := make([]error, len(c.links))
	for i := range c.links {
		all.Go(func() { errs[i] = d.DeletePair(c.conns[i], c.links[i], nil, c.host) })
	}
	all.Wait()
	for i, err := range errs {
		expect.That(t, err == nil, "pair %d: %v", i, err)
		_, err := c.conns[i].Link("eth0")
		expect.That(t, NotFound(err), "pair %d is there: %v", i, err)
	}
	in := d.of(c.host.ID())
	got := c.onHost(t, "veth")
	expect.That(t, len(got) == 0 && len(in.waiting)+len(in.leaders) == 0, "left: %v, %v", got, in)
}

// TestFewDeleteAlone: a pair of few teardowns waits for no others.
func TestFewDeleteAlone(t *testing.T) {
	c := newCrowd(t, 1)
	var d Deletions
	c.occupied(&d)
	for range manyTeardowns {
		d.Begin()
	}
	d.End()
	done := make(chan error, 1)
	go func() { done <- d.DeletePair(c.conns[0], c.links[0], nil, c.host) }()
	expect.Eventually(t, "it does not wait for others", func() bool { return len(done) == 1 })
	expect.NoError(t, <-done)
}

// TestWithoutDeletions each pair is deleted by itself.
func TestWithoutDeletions(t *testing.T) {
	c := newCrowd(t, 1)
	expect.NoError(t, (*Deletions)(nil).DeletePair(c.conns[0], c.links[0], nil, c.host))
	expect.Empty(t, "left", c.onHost(t, "veth"))
}
