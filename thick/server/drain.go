package server

import (
	"context"
	"errors"
	"fmt"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/proc"
	"github.com/embedcni/cni/internal/kernel/thread"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/thick/internal/delqueue"
	"github.com/embedcni/cni/thick/internal/wire"
)

// DrainReport is the outcome of a Drain: a list of DELs for each.
type DrainReport struct {
	// Ended are those that the Backend has carried out. Err is set if one could not be
	// deleted from the queue. The next Drain drops it.
	Ended []QueuedDel
	// Dropped are those whose interface is detached already, or was attached after the
	// DEL: Err has the reason.
	Dropped []QueuedDel
	// Failed stay in the queue for the next Drain. Err has the reason. The interface stays
	// on the Backend's record: once that is removed because the container is dead, the next
	// Drain drops the DEL.
	Failed []QueuedDel
	// Unreadable is about files of the queue that could not be read, nil if there are
	// none: they keep no other DEL in the queue. A damaged file is set aside under another
	// name, and reported once; another stays, and is reported each time.
	Unreadable error
}

// QueuedDel is a DEL that a shim has queued.
type QueuedDel struct {
	ContainerID, IfName, Network string
	Err                          error
}

// Drain carries out the DELs that shims have queued in a directory (shim.Options.QueueDir)
// because there was no daemon. Call it after Listen: a shim that finds nobody listening has put
// its DEL into the queue before, and then the Drain finds it.
//
// Serve may answer clients meanwhile. ADDs of the containers that are in the queue wait until
// their DELs have ended, the others for nothing. An ADD that came before Drain has read the queue
// is refused if the interface is still attached. Call Drain before Serve if none may be.
//
// A DEL is carried out if the interface, on that network, is attached by an ADD that began
// before the DEL did, and in the same network namespace. In doubt it is dropped: a
// container that is dead and still attached is recovered from its record. The Backend must
// be a [Ledger].
//
// The DELs of one container are carried out in their order, those of different ones in
// parallel, each within Limits.Deadline. They have the slots of Limits.Concurrent for DELs, in
// turn with those of clients: one that hangs keeps the others waiting for five seconds. If the
// context ends, the others stay in the queue. The error is of the queue as a whole; a DEL that
// fails is only in the report.
func (s *Server) Drain(ctx context.Context, dir string) (*DrainReport, error) {
	report, err := s.drainQueue(ctx, delqueue.Open(dir))
	if err != nil {
		return nil, fmt.Errorf("server: drain %s: %w", dir, err)
	}
	return report, nil
}

func (s *Server) drainQueue(ctx context.Context, queue *delqueue.Queue) (*DrainReport, error) {
	ledger, ok := s.backend.(Ledger)
	if !ok {
		return nil, errors.New("the Backend is no Ledger")
	}
	report := &DrainReport{}
	entries, err := queue.List()
	if err != nil && !errors.Is(err, delqueue.ErrUnread) {
		return nil, err
	}
	if report.Unreadable = err; len(entries) == 0 {
		return report, nil
	}
	now, err := proc.BootID()
	if err != nil {
		return nil, err
	}
	drains := byContainer(entries)
	for _, d := range drains {
		d.Server, d.ledger, d.queue, d.boot = s, ledger, queue, now
		d.end = s.holds.del(d.id)
	}
	thread.Each(len(drains), mostDrained, func(i int) {
		defer drains[i].end()
		drains[i].run(ctx)
	})
	for _, d := range drains {
		report.Ended = append(report.Ended, d.Ended...)
		report.Dropped = append(report.Dropped, d.Dropped...)
		report.Failed = append(report.Failed, d.Failed...)
	}
	return report, nil
}

// mostDrained is how many containers' DELs wait for a slot at the same time.
const mostDrained = 1024

// drain is the part of a Drain that concerns one container.
type drain struct {
	*Server
	ledger  Ledger
	queue   *delqueue.Queue
	boot    string
	id      string
	entries []*delqueue.Entry
	end     func() // lets ADDs of the container begin
	DrainReport
}

// byContainer returns a drain for each container, in the order of their first entries.
func byContainer(entries []*delqueue.Entry) []*drain {
	var all []*drain
	of := map[string]*drain{}
	for _, e := range entries {
		id := e.Env["CNI_CONTAINERID"]
		if of[id] == nil {
			of[id] = &drain{id: id}
			all = append(all, of[id])
		}
		of[id].entries = append(of[id].entries, e)
	}
	return all
}

func (d *drain) run(ctx context.Context) {
	for _, e := range d.entries {
		one := QueuedDel{e.Env["CNI_CONTAINERID"], e.Env["CNI_IFNAME"], e.Network, nil}
		to := &d.Ended
		var dropped reason
		if err := d.del(ctx, e); errors.As(err, &dropped) {
			one.Err, to = err, &d.Dropped
		} else if err != nil {
			one.Err, to = err, &d.Failed
		}
		if to != &d.Failed {
			// An entry that stays matches no attachment any more.
			one.Err = joined.Errors(one.Err, d.queue.Remove(e))
		}
		*to = append(*to, one)
	}
}

// reason is why a DEL is dropped.
type reason string

func (r reason) Error() string { return string(r) }

// del carries out one DEL.
func (d *drain) del(ctx context.Context, e *delqueue.Entry) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	c, err := d.check(&wire.Request{Env: e.Env, Config: e.Config})
	if err != nil {
		return err
	}
	if c.verb != wire.Del {
		return fmt.Errorf("the queued call is %s instead of %s", c.verb, wire.Del)
	}
	_, end := d.holds.call(d.id)
	defer end()
	if err := d.holds.alone(ctx, d.id); err != nil { // those that were under way before
		return err
	}
	if err := d.mayEnd(ctx, e, c); err != nil {
		return err
	}
	if id, known := namespaceAt(c.NetNS); known && id != e.NetNS {
		c.NetNS = "" // the path leads to another container's now
	}
	_, err = d.Server.run(ctx, c, d.gate.turn(c.verb, true))
	return err
}

// mayEnd returns an error, which may be a reason, unless the DEL is for the attachment under
// that name. No ADD of the container runs.
func (d *drain) mayEnd(ctx context.Context, e *delqueue.Entry, c *call) error {
	attached, err := d.ledger.Attachments(ctx, d.id)
	if err != nil {
		return err
	}
	found := false
	for _, a := range attached {
		if a.ContainerID != c.ContainerID || a.IfName != c.IfName || a.Network != c.Network {
			continue
		}
		found = true
		added, err := delqueue.ParseMoment(a.Began)
		if err != nil {
			return reason(err.Error())
		}
		ns, _ := namespaceAt(a.NetNS)
		if ends, why := e.Ends(added, ns, d.boot); !ends {
			return reason(why)
		}
	}
	if !found {
		return reason("the interface is not attached")
	}
	return nil
}

// now returns the text for Request.Began. If the time is not known, it is empty, and no
// queued DEL ends the attachment.
func (s *Server) now() string {
	now, err := delqueue.Now()
	if err != nil {
		s.logger.Warn("the time of an ADD is not known", "error", err)
	}
	return now.String()
}

// namespaceAt identifies the namespace that a path leads to, if it leads to one.
func namespaceAt(path string) (netns.ID, bool) {
	h, err := netns.Open(path)
	if err != nil {
		return netns.ID{}, false
	}
	id := h.ID()
	return id, h.Close() == nil
}
