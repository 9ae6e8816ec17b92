package cli

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/embedcni/cni"
)

// progress is a line on the terminal that says what a long call is doing. It appears after a
// second, and is wiped when the call ends.
type progress struct {
	a     *app
	what  string
	total int
	begun time.Time
	stop  func()
	ended chan struct{}

	mu   sync.Mutex
	done int
	last string // the plugin that has answered last
}

// begin shows the progress of work of so many parts (0: it has none), until end. It shows
// nothing unless stderr is a terminal.
func (a *app) begin(what string, total int) *progress {
	p := &progress{a: a, what: what, total: total, begun: a.Now(), ended: make(chan struct{})}
	if a.Columns(a.Err) == 0 {
		close(p.ended)
		p.stop = func() {}
		return p
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.stop = cancel
	a.current.Store(p)
	ticks, stopTicks := a.Seconds()
	go func() {
		defer close(p.ended)
		defer stopTicks()
		p.show(ctx, ticks)
	}()
	return p
}

// show writes the line anew each second, and wipes it in the end.
func (p *progress) show(ctx context.Context, ticks <-chan time.Time) {
	shown := false
	for {
		select {
		case <-ctx.Done():
			if shown {
				fmt.Fprint(p.a.Err, "\r\x1b[K")
			}
			return
		case <-ticks:
			shown = true
			line := []rune(p.String())
			if width := p.a.Columns(p.a.Err); width > 1 && len(line) >= width {
				line = line[:width-1]
			}
			fmt.Fprint(p.a.Err, "\r\x1b[K"+string(line))
		}
	}
}

func (p *progress) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	line := p.what
	if p.total > 0 {
		line += fmt.Sprintf(": %d of %d", p.done, p.total)
	}
	line += fmt.Sprintf(", %d s", int(p.a.Now().Sub(p.begun).Seconds()))
	if p.last != "" {
		line += ", last " + p.last
	}
	return line
}

// step says that a part is done.
func (p *progress) step() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done++
}

// end wipes the line. It may be called again.
func (p *progress) end() {
	p.stop()
	<-p.ended
	p.a.current.CompareAndSwap(p, nil)
}

// observe has the line name the plugin that has answered last.
func (a *app) observe(_ context.Context, e cni.Event) {
	p := a.current.Load()
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = fmt.Sprintf("%s %s %s", e.Operation, e.Plugin, e.ContainerID)
}

// seconds ticks once a second.
func seconds() (<-chan time.Time, func()) {
	t := time.NewTicker(time.Second)
	return t.C, t.Stop
}
