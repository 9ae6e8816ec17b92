package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/trace"
	"time"

	reader "golang.org/x/exp/trace"
)

// profile attaches containers one after the other, and detaches them, under the
// tracer of Go's runtime. A profile of the processor's time would not show the
// time in which the kernel makes a caller wait, which is most of a DEL.
func (w *worker) profile(ctx context.Context, o order) (reply, error) {
	containers, err := w.create(o)
	if err != nil {
		return reply{}, err
	}
	var r reply
	for _, one := range []struct {
		verb string
		do   func(context.Context, container) error
	}{{verbADD, w.attacher.add}, {verbDEL, w.attacher.del}} {
		p, err := profiled(one.verb, containers, func(c container) error { return one.do(ctx, c) })
		if err != nil {
			return reply{}, err
		}
		r.Profiles = append(r.Profiles, p)
	}
	return r, nil
}

// profiled calls fn for each container.
func profiled(verb string, containers []container, fn func(container) error) (profile, error) {
	var traced bytes.Buffer
	if err := trace.Start(&traced); err != nil {
		return profile{}, fmt.Errorf("trace: %w", err)
	}
	took, _, err := callAll(containers, 1, fn)
	trace.Stop()
	if err != nil {
		return profile{}, err
	}
	var all tree
	if err := stretches(&traced, all.add); err != nil {
		return profile{}, fmt.Errorf("read the trace: %w", err)
	}
	return profile{Verb: verb, Took: summarize(took).Median.Microseconds(), Root: all.box(verb, len(containers))}, nil
}

// stretches calls yield for each time in which a goroutine ran, or the kernel
// worked for it or made it wait. Waiting for other goroutines does not count, as
// their own stretches do.
func stretches(traced io.Reader, yield func(stretch)) error {
	events, err := reader.NewReader(traced)
	if err != nil {
		return err
	}
	goroutines := make(map[reader.GoID]*progress)
	for {
		e, err := events.ReadEvent()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if e.Kind() != reader.EventStateTransition {
			continue
		}
		change := e.StateTransition()
		if change.Resource.Kind != reader.ResourceGoroutine {
			continue
		}
		id := change.Resource.Goroutine()
		if goroutines[id] == nil {
			goroutines[id] = &progress{}
		}
		goroutines[id].change(e.Time(), change, yield)
	}
}

// progress is the state of a goroutine.
type progress struct {
	since reader.Time
	known bool     // since is valid
	stack []string // where the goroutine was last seen
	waits bool     // it waits for the kernel
}

// change ends a stretch. Code that runs between two system calls counts as part
// of the function that makes the second one, because the trace has no other
// stack.
func (p *progress) change(now reader.Time, c reader.StateTransition, yield func(stretch)) {
	from, to := c.Goroutine()
	if from == to { // a state that goes on in the trace's next part
		return
	}
	var stack []string
	for frame := range c.Stack.Frames() {
		stack = append(stack, frame.Func)
	}
	took := time.Duration(now - p.since)
	if p.known {
		switch {
		case from == reader.GoRunning:
			if stack == nil { // the goroutine ends
				stack = p.stack
			}
			yield(stretch{Stack: stack, Took: took})
		case from == reader.GoSyscall, from == reader.GoWaiting && p.waits:
			yield(stretch{Stack: p.stack, Kernel: true, Took: took})
		}
	}
	if stack != nil && from == reader.GoRunning {
		p.stack = stack
	}
	p.since, p.known = now, true
	p.waits = to == reader.GoWaiting && c.Reason == "network"
}
