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
// because there was no daemon. Call it after Listen and before Serve: a shim that finds
// nobody listening has put its DEL into the queue before, and then the Drain finds it.
// Clients that call meanwhile wait.
//
// A DEL is carried out if the interface, on that network, is attached by an ADD that began
// before the DEL did, and in the same network namespace. In doubt it is dropped: a
// container that is dead and still attached is recovered from its record. The Backend must
// be a [Ledger].
//
// The DELs of one container are carried out in their order, those of different ones in
// parallel, each within Limits.Deadline. They have the slots of Limits.Concurrent for DELs, in
// turn with those of clients. If the context ends, the others stay in the
// queue. The error is of the queue as a whole; a DEL that fails is only in the report.
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
	attached, err := ledger.Attachments(ctx)
	if err != nil {
		return nil, err
	}
	now, err := proc.BootID()
	if err != nil {
		return nil, err
	}
	drains := byContainer(s, queue, now, entries, attached)
	thread.Each(len(drains), s.limits.Concurrent, func(i int) { drains[i].run(ctx) })
	for _, d := range drains {
		report.Ended = append(report.Ended, d.Ended...)
		report.Dropped = append(report.Dropped, d.Dropped...)
		report.Failed = append(report.Failed, d.Failed...)
	}
	return report, nil
}

// drain is the part of a Drain that concerns one container.
type drain struct {
	*Server
	queue    *delqueue.Queue
	boot     string
	entries  []*delqueue.Entry
	attached []Attachment
	DrainReport
}

// byContainer returns a drain for each container, in the order of their first entries.
func byContainer(s *Server, queue *delqueue.Queue, boot string, entries []*delqueue.Entry, attached []Attachment) []*drain {
	var all []*drain
	of := map[string]*drain{}
	for _, e := range entries {
		id := e.Env["CNI_CONTAINERID"]
		if of[id] == nil {
			of[id] = &drain{Server: s, queue: queue, boot: boot}
			all = append(all, of[id])
		}
		of[id].entries = append(of[id].entries, e)
	}
	for _, a := range attached {
		if d := of[a.ContainerID]; d != nil {
			d.attached = append(d.attached, a)
		}
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
	rest, err := d.endedBy(e, c)
	if err != nil {
		return err
	}
	if id, known := namespaceAt(c.NetNS); known && id != e.NetNS {
		c.NetNS = "" // the path leads to another container's now
	}
	if _, err := d.Server.run(ctx, c, d.gate.turn(c.verb, true)); err != nil {
		return err
	}
	d.attached = rest
	return nil
}

// endedBy returns the attachments of the container that a DEL leaves. The error is a
// reason if the DEL is not for the one that is attached under that name.
func (d *drain) endedBy(e *delqueue.Entry, c *call) (rest []Attachment, err error) {
	for _, a := range d.attached {
		if a.ContainerID != c.ContainerID || a.IfName != c.IfName || a.Network != c.Network {
			rest = append(rest, a)
			continue
		}
		added, err := delqueue.ParseMoment(a.Began)
		if err != nil {
			return nil, reason(err.Error())
		}
		ns, _ := namespaceAt(a.NetNS)
		if ends, why := e.Ends(added, ns, d.boot); !ends {
			return nil, reason(why)
		}
	}
	if len(rest) == len(d.attached) {
		return nil, reason("the interface is not attached")
	}
	return rest, nil
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
