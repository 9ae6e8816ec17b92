package invoke

import (
	"errors"
	"os"
	"sync"
	"time"
)

// printed is what a plugin prints. It does not use os/exec's pipes, because those lose
// their content when they are given up while a child holds them.
type printed struct {
	child, ours [2]*os.File // stdout and stderr

	overflow func()        // called when stdout exceeds its limit
	done     chan struct{} // closed when both have been read

	limit    int64
	stdout   []byte
	tooLarge bool // stdout has exceeded its limit
	stderr   tail
}

func newPrinted(lim Limits, overflow func()) (*printed, error) {
	p := &printed{overflow: overflow, done: make(chan struct{}), limit: lim.Stdout, stderr: tail{limit: lim.Stderr}}
	for i := range p.child {
		var err error
		if p.ours[i], p.child[i], err = os.Pipe(); err != nil {
			p.discard()
			return nil, err
		}
	}
	return p, nil
}

// discard closes the pipes of a plugin that was not started.
func (p *printed) discard() {
	closeAll(p.child)
	closeAll(p.ours)
}

// begin starts to read, once the plugin has its ends.
func (p *printed) begin() {
	closeAll(p.child)
	var reading sync.WaitGroup
	reading.Go(func() { read(p.ours[0], p.keepStdout) })
	reading.Go(func() { read(p.ours[1], p.stderr.keep) })
	go func() {
		reading.Wait()
		close(p.done)
	}()
}

// stop ends the reading, but for data that is already in the pipes: it was printed in
// time, and on a busy machine it may be the whole result.
func (p *printed) stop() {
	for _, f := range p.ours {
		if errors.Is(f.SetDeadline(time.Unix(1, 0)), os.ErrNoDeadline) { // Windows; closing interrupts there
			_ = f.Close()
		}
	}
	<-p.done
	closeAll(p.ours)
}

// output returns the data read. It may be called only after stop.
func (p *printed) output() Output {
	return Output{Stdout: p.stdout, Stderr: p.stderr.bytes()}
}

// keepStdout never keeps more than the limit. The plugin then blocks on its full
// pipe until it is killed.
func (p *printed) keepStdout(data []byte) bool {
	room := p.limit - int64(len(p.stdout))
	if int64(len(data)) > room {
		p.stdout, p.tooLarge = append(p.stdout, data[:room]...), true
		p.overflow()
		return false
	}
	p.stdout = append(p.stdout, data...)
	return true
}

// read copies from f to keep until the end of f, its deadline, or until keep has
// enough.
func read(f *os.File, keep func([]byte) bool) {
	// A deadline that has passed keeps Read from looking for data that is there already.
	const toLook = 20 * time.Millisecond
	chunk := make([]byte, 16<<10)
	for late := false; ; {
		n, err := f.Read(chunk)
		if !keep(chunk[:n]) {
			return
		}
		if !late && errors.Is(err, os.ErrDeadlineExceeded) {
			late, err = true, f.SetReadDeadline(time.Now().Add(toLook))
		}
		if err != nil {
			return
		}
	}
}

// closeAll ignores errors, such as that of a closed file, or of none.
func closeAll(files [2]*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// tail keeps the last bytes of a stream.
type tail struct {
	limit int
	last  []byte // at most twice the limit, and a write
}

func (t *tail) keep(p []byte) bool {
	if t.last = append(t.last, p...); len(t.last) > 2*t.limit {
		t.last = append(t.last[:0], t.bytes()...)
	}
	return true
}

func (t *tail) bytes() []byte { return t.last[max(0, len(t.last)-t.limit):] }
