package server

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"go.opentelemetry.io/otel/propagation"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/proc"
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

// Drain reads the DELs that shims have queued in a directory (shim.Options.QueueDir) because
// there was no daemon, and carries them out in the background. Call it between Listen and Serve.
// A shim that finds nobody listening has put its DEL into the queue before, so Drain finds it.
// When Drain returns, each ADD of a container in the queue waits until the container's DELs have
// ended or failed; an ADD that came before is refused if the interface is still attached.
// Calls for other containers never wait.
//
// A DEL is carried out if the interface, on that network, is attached by an ADD that began
// before the DEL did, and in the same network namespace. In doubt it is dropped: a
// container that is dead and still attached is recovered from its record. The Backend must
// be a [Ledger].
//
// The DELs of one container are carried out in their order, those of different ones in
// parallel, each within Limits.Deadline. They have the slots of Limits.Concurrent for DELs, in
// turn with those of clients. One that hangs keeps others from its slot for five seconds. One
// that fails is tried once more when the other containers have had their turn; the later DELs of
// its container wait for that.
//
// The channel gets the report when all have ended or failed. If the context ends, the others
// stay in the queue. So they do from the beginning of a Shutdown, which treats those under way
// as one call of a client. The error is of the queue as a whole, and then nothing is carried out.
func (s *Server) Drain(ctx context.Context, dir string) (<-chan *DrainReport, error) {
	drains, unreadable, err := s.readQueue(delqueue.Open(dir))
	if err != nil {
		return nil, fmt.Errorf("server: drain %s: %w", dir, err)
	}
	ctx, end := s.begin(ctx)
	done := make(chan *DrainReport, 1)
	go func() {
		defer end()
		takeTurns(ctx, drains)
		report := &DrainReport{Unreadable: unreadable}
		for _, d := range drains {
			report.Ended = append(report.Ended, d.Ended...)
			report.Dropped = append(report.Dropped, d.Dropped...)
			report.Failed = append(report.Failed, d.Failed...)
		}
		done <- report
	}()
	return done, nil
}

// readQueue returns a drain for each container in the queue. ADDs of these wait.
func (s *Server) readQueue(queue *delqueue.Queue) (drains []*drain, unreadable, err error) {
	ledger, ok := s.backend.(Ledger)
	if !ok {
		return nil, nil, errors.New("the Backend is no Ledger")
	}
	entries, unreadable := queue.List()
	if unreadable != nil && !errors.Is(unreadable, delqueue.ErrUnread) {
		return nil, nil, unreadable
	}
	if len(entries) == 0 {
		return nil, unreadable, nil
	}
	boot, err := proc.BootID()
	if err != nil {
		return nil, nil, err
	}
	drains = byContainer(entries)
	for _, d := range drains {
		d.Server, d.ledger, d.queue, d.boot = s, ledger, queue, boot
		d.end = s.holds.del(d.id)
	}
	return drains, unreadable, nil
}

// mostDrained is how many containers' DELs wait for a slot at the same time.
const mostDrained = 1024

// takeTurns carries out all DELs. A container with one that is to be tried again goes behind
// the others.
func takeTurns(ctx context.Context, drains []*drain) {
	room := len(drains)
	for _, d := range drains {
		room += len(d.entries) // each goes behind the others once
	}
	turns := make(chan *drain, room)
	var open sync.WaitGroup
	open.Add(len(drains))
	for _, d := range drains {
		turns <- d
	}
	for range min(len(drains), mostDrained) {
		go func() {
			for d := range turns {
				if again := d.run(ctx); again {
					turns <- d
					continue
				}
				d.end()
				open.Done()
			}
		}()
	}
	open.Wait()
	close(turns)
}

// drain is the part of a Drain that concerns one container.
type drain struct {
	*Server
	ledger  Ledger
	queue   *delqueue.Queue
	boot    string
	id      string
	entries []*delqueue.Entry // those that are left
	failed  *delqueue.Entry   // the one that is tried again
	end     func()            // lets ADDs of the container begin
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

// run carries out the DELs that are left. It returns true if the first of these has failed for
// the first time.
func (d *drain) run(ctx context.Context) (again bool) {
	for ; len(d.entries) > 0; d.entries = d.entries[1:] {
		e := d.entries[0]
		err := d.del(ctx, e)
		if err != nil && !errors.As(err, new(reason)) && d.failed != e {
			d.failed = e
			return true
		}
		d.note(e, err)
	}
	return false
}

// note adds a DEL to the report. It deletes the entry unless the DEL has failed.
func (d *drain) note(e *delqueue.Entry, err error) {
	to := &d.Failed
	if err == nil {
		to = &d.Ended
	} else if errors.As(err, new(reason)) {
		to = &d.Dropped
	}
	if to != &d.Failed { // an entry that stays matches no attachment any more
		err = joined.Errors(err, d.queue.Remove(e))
	}
	*to = append(*to, QueuedDel{e.Env["CNI_CONTAINERID"], e.Env["CNI_IFNAME"], e.Network, err})
}

// reason is why a DEL is dropped.
type reason string

func (r reason) Error() string { return string(r) }

// parse returns the call of an entry.
func (d *drain) parse(e *delqueue.Entry) (*call, error) {
	c, err := d.check(&wire.Request{Env: e.Env, Config: e.Config})
	if err == nil && c.verb != wire.Del {
		err = fmt.Errorf("the queued call is %s instead of %s", c.verb, wire.Del)
	}
	return c, err
}

// del carries out one DEL. The error is a reason if it is dropped.
func (d *drain) del(ctx context.Context, e *delqueue.Entry) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	_, end := d.holds.call(d.id, wire.Del, false)
	defer end()
	if err := d.holds.alone(ctx, d.id); err != nil { // those that were under way before
		return err
	}
	if err := d.mayEnd(ctx, e); err != nil {
		return err
	}
	c, err := d.parse(e)
	if err != nil {
		return err
	}
	if id, known := namespaceAt(c.NetNS); known && id != e.NetNS {
		c.NetNS = "" // the path leads to another container's now
	}
	_, err = d.Server.run(traced(ctx, propagation.MapCarrier(e.Trace)), c, d.gate.turn(c.verb, true))
	return err
}

// mayEnd returns an error, which may be a reason, unless the DEL is for the attachment under
// that name. No ADD of the container runs.
func (d *drain) mayEnd(ctx context.Context, e *delqueue.Entry) error {
	attached, err := d.ledger.Attachments(ctx, d.id)
	if err != nil {
		return err
	}
	found := false
	for _, a := range attached {
		if a.ContainerID != d.id || a.IfName != e.Env["CNI_IFNAME"] || a.Network != e.Network {
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
