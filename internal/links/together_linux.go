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

	mu     sync.Mutex
	in     map[netns.ID]*deleting
	groups map[netns.ID]uint32 // of the pairs that are deleted together
}

// deleting is what goes on in a namespace.
type deleting struct {
	leaders int        // callers that delete now
	waiting []*removal // until one of them has finished
}

// removal is one caller's.
type removal struct {
	conn  *Conn // in the container's namespace
	index int
	host  int // index of the host's end
	err   error
	// lead has the removals that the caller shall do, its own among them, or is closed
	// when another one has done them.
	lead chan []*removal
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
	one := &removal{conn: c, index: l.Index, host: l.Peer.Index, err: errUnfinished, lead: make(chan []*removal, 1)}
	if batch := d.join(host.ID(), one); batch != nil {
		d.delete(conns, host, batch)
	}
	return one.err
}

// join returns the removals that the caller has to do, or nil when another caller has
// done its.
func (d *Deletions) join(id netns.ID, one *removal) []*removal {
	d.mu.Lock()
	in := d.in[id]
	if in == nil {
		in = new(deleting)
		if d.in == nil {
			d.in = make(map[netns.ID]*deleting)
		}
		d.in[id] = in
	}
	if in.leaders < mostLeaders {
		in.leaders++
		d.mu.Unlock()
		return []*removal{one}
	}
	in.waiting = append(in.waiting, one)
	d.mu.Unlock()
	return <-one.lead
}

// pass ends the work of a leader: one of those that wait is the next.
func (d *Deletions) pass(id netns.ID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	in := d.in[id]
	if len(in.waiting) == 0 {
		if in.leaders--; in.leaders == 0 {
			delete(d.in, id)
		}
		return
	}
	n := min(len(in.waiting), mostRemovals)
	batch := slices.Clone(in.waiting[:n])
	in.waiting = slices.Delete(in.waiting, 0, n)
	batch[0].lead <- batch
}

// delete does the removals of the leader and of others. The leader's is the first.
func (d *Deletions) delete(conns *Conns, host *netns.Handle, batch []*removal) {
	defer d.pass(host.ID())
	defer func() {
		for _, other := range batch[1:] {
			close(other.lead)
		}
	}()
	if len(batch) > 1 && d.deleteGroup(conns, host, batch) == nil {
		return
	}
	for _, one := range batch {
		one.err = one.conn.Delete(one.index)
	}
}

// deleteGroup deletes all pairs by one request, for which their host's ends become
// members of a group (IFLA_GROUP, rtnl_group_dellink in net/core/rtnetlink.c). After an
// error it may have deleted none.
func (d *Deletions) deleteGroup(conns *Conns, host *netns.Handle, batch []*removal) error {
	c, err := conns.Borrow(host)
	if err != nil {
		return err
	}
	group, err := d.group(c, host.ID())
	if err == nil {
		err = c.deleteGroup(group, batch)
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

// group returns the group that this process uses in a namespace: a random one, of which
// no interface is. Administrators' groups are small numbers (ip-link(8)), and 0 is that
// of all others.
func (d *Deletions) group(c *Conn, id netns.ID) (uint32, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if group := d.groups[id]; group != 0 {
		return group, nil
	}
	taken, err := c.groups()
	if err != nil {
		return 0, err
	}
	group := uint32(0)
	for group == 0 || taken[group] {
		group = 1<<30 + rand.Uint32N(1<<30)
	}
	if d.groups == nil {
		d.groups = make(map[netns.ID]uint32)
	}
	d.groups[id] = group
	return group, nil
}

// groups lists the groups of the interfaces.
func (c *Conn) groups() (taken map[uint32]bool, err error) {
	err = c.list(linkList(), func() { taken = make(map[uint32]bool) }, func(body []byte) error {
		var r reader
		taken[r.attributes(body, unix.SizeofIfInfomsg).num(unix.IFLA_GROUP)] = true
		return r.err
	})
	if err != nil {
		return nil, fmt.Errorf("list the groups of interfaces: %w", err)
	}
	return taken, nil
}
