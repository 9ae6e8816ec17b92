package links

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/netns"
)

// Deletions delete pairs whose host's ends are in one namespace. Each deletion alone
// makes the kernel wait for grace periods, some of them with the lock that every change
// of interfaces needs. So when many teardowns are going on, two callers delete, the
// others wait, and then one of them deletes the pairs of all. With few, that would make
// each wait twice for the same.
//
// They are safe for concurrent use, and the zero Deletions are ready for use. Nil ones
// delete each pair by itself.
type Deletions struct {
	teardowns atomic.Int64 // that are going on

	mu sync.Mutex
	in map[netns.ID]*deleting
}

// deleting is what goes on in a namespace.
type deleting struct {
	leaders chan struct{} // has a token of each caller that deletes now

	mu      sync.Mutex
	waiting []*removal // until one of them leads
	group   uint32     // of the pairs that are deleted together; 0: not chosen yet
}

// removal is one caller's.
type removal struct {
	conn  *Conn // in the container's namespace
	index int
	host  int // index of the host's end
	err   error
	done  chan struct{} // closed when this caller has done it, or another one
}

const (
	// manyTeardowns is how many teardowns are so many that their pairs are deleted together.
	manyTeardowns = 9
	// mostLeaders is how many callers delete at the same time: a deletion ends with a
	// wait without the lock, in which the next one can begin.
	mostLeaders = 2
	// mostRemovals is how many one caller deletes.
	mostRemovals = 64
)

// errUnfinished is the error of a removal whose leader did not return.
var errUnfinished = errors.New("the deletion was not finished")

// Begin notes that a teardown has begun, which may delete pairs, and ends with End.
func (d *Deletions) Begin() { d.teardowns.Add(1) }

// End notes the end of a teardown.
func (d *Deletions) End() { d.teardowns.Add(-1) }

// DeletePair deletes the pair whose end in a container's namespace l is, which c
// has looked up. It ignores a missing one. Conns and host are those of the host's end; where
// that is not in the namespace host, or host is nil, the pair is deleted by itself.
func (d *Deletions) DeletePair(c *Conn, l Link, conns *Conns, host *netns.Handle) error {
	if d == nil || d.teardowns.Load() < manyTeardowns || host == nil || l.Kind != "veth" || !l.Peer.Elsewhere || l.Peer.Index == 0 {
		return c.Delete(l.Index)
	}
	// Only the number of its namespace tells whose interface has the peer's index.
	id, err := c.NetNS(host)
	if err != nil || id < 0 || id != l.Peer.NetNS {
		return c.Delete(l.Index)
	}
	one := &removal{conn: c, index: l.Index, host: l.Peer.Index, err: errUnfinished, done: make(chan struct{})}
	in := d.of(host.ID())
	in.mu.Lock()
	in.waiting = append(in.waiting, one)
	in.mu.Unlock()
	select {
	case <-one.done:
	case in.leaders <- struct{}{}:
		in.lead(conns, host, one)
		<-one.done
	}
	return one.err
}

// of returns what goes on in a namespace.
func (d *Deletions) of(id netns.ID) *deleting {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.in == nil {
		d.in = make(map[netns.ID]*deleting)
	}
	if d.in[id] == nil {
		d.in[id] = &deleting{leaders: make(chan struct{}, mostLeaders)}
	}
	return d.in[id]
}

// take returns the caller's removal, with others that wait; none if another leader has
// taken it.
func (in *deleting) take(one *removal) (batch []*removal) {
	in.mu.Lock()
	defer in.mu.Unlock()
	at := slices.Index(in.waiting, one)
	if at < 0 {
		return nil
	}
	in.waiting = slices.Delete(in.waiting, at, at+1)
	n := min(len(in.waiting), mostRemovals-1)
	batch = append([]*removal{one}, in.waiting[:n]...)
	in.waiting = slices.Delete(in.waiting, 0, n)
	return batch
}

// lead does the removals of the caller and of others, and makes room for the next leader.
func (in *deleting) lead(conns *Conns, host *netns.Handle, one *removal) {
	defer func() { <-in.leaders }()
	batch := in.take(one)
	defer func() {
		for _, one := range batch {
			close(one.done)
		}
	}()
	if len(batch) > 1 && in.deleteGroup(conns, host, batch) == nil {
		return
	}
	for _, one := range batch {
		one.err = one.conn.Delete(one.index)
	}
}

// deleteGroup deletes all pairs by one request, for which their host's ends become
// members of a group (IFLA_GROUP, rtnl_group_dellink in net/core/rtnetlink.c). After an
// error it may have deleted none.
func (in *deleting) deleteGroup(conns *Conns, host *netns.Handle, batch []*removal) error {
	c, err := conns.Borrow(host)
	if err != nil {
		return err
	}
	in.mu.Lock()
	if in.group == 0 {
		in.group, err = c.freeGroup()
	}
	in.mu.Unlock()
	if err == nil {
		err = c.deleteGroup(in.group, batch)
	}
	return errors.Join(err, c.Close())
}

func (c *Conn) deleteGroup(group uint32, batch []*removal) error {
	errs := make([]error, len(batch))
	for i, one := range batch {
		errs[i] = c.execute(request(unix.RTM_SETLINK, unix.NLM_F_ACK, ifinfo(one.host, 0, 0), u32(unix.IFLA_GROUP, group)), nil)
	}
	err := c.execute(request(unix.RTM_DELLINK, unix.NLM_F_ACK, ifinfo(0, 0, 0), u32(unix.IFLA_GROUP, group)), nil)
	if err != nil && !errors.Is(err, unix.ENODEV) { // ENODEV: all were gone
		return fmt.Errorf("delete group %d of interfaces: %w", group, err)
	}
	for i, one := range batch {
		if one.err = nil; errs[i] != nil && !errors.Is(errs[i], unix.ENODEV) {
			one.err = one.conn.Delete(one.index) // it is not in the group
		}
	}
	return nil
}

// freeGroup returns a group for the pairs of this process: a random one, of which no
// interface is. Administrators' groups are small numbers (ip-link(8)), and 0 is that of all
// others.
func (c *Conn) freeGroup() (group uint32, err error) {
	taken, err := c.groups()
	for err == nil && (group == 0 || taken[group]) {
		group = 1<<30 + rand.Uint32N(1<<30)
	}
	return group, err
}

// groups lists the groups of the interfaces.
func (c *Conn) groups() (taken map[uint32]bool, err error) {
	err = c.list(linkList(), func() { taken = make(map[uint32]bool) }, func(m message) {
		taken[m.num(unix.IFLA_GROUP)] = true
	})
	return taken, saying("list the groups of interfaces", err)
}
