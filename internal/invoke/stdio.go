package invoke

import (
	"errors"
	"os"
	"slices"
	"sync/atomic"
	"time"
)

// stdio is the three pipes of a plugin. It does not use os/exec's, because those
// cannot be given up while a child holds them.
type stdio struct {
	child [3]*os.File // the plugin's ends, in the order of its descriptors
	ours  [3]*os.File

	tooLarge chan struct{} // closed when stdout exceeds its limit
	done     chan struct{} // closed when all three goroutines below have ended
	running  atomic.Int32

	limit  int64
	stdout []byte
	stderr tail
}

func newStdio(lim Limits) (*stdio, error) {
	s := &stdio{
		tooLarge: make(chan struct{}),
		done:     make(chan struct{}),
		limit:    lim.Stdout,
		stderr:   tail{limit: lim.Stderr},
	}
	for i := range s.child {
		r, w, err := os.Pipe()
		if err != nil {
			s.discard()
			return nil, err
		}
		s.child[i], s.ours[i] = w, r
		if i == 0 {
			s.child[i], s.ours[i] = r, w
		}
	}
	return s, nil
}

// discard closes the pipes of a plugin that was not started.
func (s *stdio) discard() {
	closeAll(s.child[:])
	closeAll(s.ours[:])
}

// begin starts the copying, once the plugin has its ends.
func (s *stdio) begin(stdin []byte) {
	closeAll(s.child[:])
	s.running.Store(3)
	write := func() {
		// The plugin does not read it, or not in time. If it needs its input, it
		// reports an error itself.
		_, _ = s.ours[0].Write(stdin)
		closeAll(s.ours[:1])
	}
	if len(stdin) <= smallestPipe {
		s.run(write) // nobody has to read it first
	} else {
		go s.run(write)
	}
	go s.run(func() { read(s.ours[1], s.keepStdout) })
	go s.run(func() { read(s.ours[2], s.stderr.keep) })
}

// smallestPipe is what every empty pipe takes at once: a page, see pipe(7).
const smallestPipe = 4096

func (s *stdio) run(f func()) {
	f()
	if s.running.Add(-1) == 0 {
		close(s.done)
	}
}

// stop ends the copying. It still reads data that is already in the pipes: it
// was printed in time, and on a busy machine it may be the whole result.
func (s *stdio) stop() {
	past := time.Unix(1, 0)
	for _, f := range s.ours {
		err := f.SetDeadline(past)
		if errors.Is(err, os.ErrNoDeadline) { // Windows; closing interrupts there
			closeAll([]*os.File{f})
		}
	}
	<-s.done
	closeAll(s.ours[:])
}

func (s *stdio) isTooLarge() bool {
	select {
	case <-s.tooLarge:
		return true
	default:
		return false
	}
}

// output returns the data read. It may be called only after stop.
func (s *stdio) output() Output {
	return Output{Stdout: s.stdout, Stderr: s.stderr.bytes(), StderrDropped: s.stderr.dropped()}
}

// keepStdout never keeps more than the limit. The plugin then blocks on its full
// pipe until it is killed.
func (s *stdio) keepStdout(p []byte) bool {
	room := s.limit - int64(len(s.stdout))
	if int64(len(p)) > room {
		s.stdout = append(s.stdout, p[:room]...)
		close(s.tooLarge)
		return false
	}
	s.stdout = append(s.stdout, p...)
	return true
}

// read copies from f to keep until the end of f, its deadline, or until keep has
// enough.
func read(f *os.File, keep func([]byte) bool) {
	const largestPipe = 1 << 20 // /proc/sys/fs/pipe-max-size: the most that can have been printed in time
	chunk := make([]byte, 16<<10)
	for {
		n, err := f.Read(chunk)
		if !keep(chunk[:n]) {
			return
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			return
		}
	}
	for range largestPipe / len(chunk) {
		n := readNow(f, chunk)
		if n == 0 || !keep(chunk[:n]) {
			return
		}
	}
}

// closeAll closes the files that are not nil. It ignores errors, such as that of
// a closed file.
func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}

// tail keeps the last bytes of a stream, in a ring.
type tail struct {
	limit int
	ring  []byte
	next  int // position of the oldest byte, and of the next write
	total int64
}

func (t *tail) keep(p []byte) bool {
	t.total += int64(len(p))
	if room := t.limit - len(t.ring); room > 0 {
		n := min(room, len(p))
		t.ring = append(t.ring, p[:n]...)
		p = p[n:]
	}
	for len(p) > 0 {
		n := copy(t.ring[t.next:], p)
		t.next = (t.next + n) % len(t.ring)
		p = p[n:]
	}
	return true
}

func (t *tail) bytes() []byte {
	if t.next == 0 {
		return t.ring
	}
	return slices.Concat(t.ring[t.next:], t.ring[:t.next])
}

func (t *tail) dropped() int64 {
	return t.total - int64(len(t.ring))
}
