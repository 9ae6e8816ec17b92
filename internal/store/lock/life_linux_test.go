package lock

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

func wantLives(t *testing.T, s *Space, name string, lives, known bool) {
	t.Helper()
	gotLives, gotKnown, err := s.Lives(name)
	expect.That(t, gotLives == lives && gotKnown == known && err == nil,
		"%q lives: %v, known: %v, %v; want %v, %v", name, gotLives, gotKnown, err, lives, known)
}

func mustLive(t *testing.T, s *Space) string {
	t.Helper()
	return expect.Value(s.Life())(t)
}

func wantState(t *testing.T, s *Space, name string, want State) {
	t.Helper()
	got, err := s.State(Byte(name))
	expect.That(t, got == want && err == nil, "state of %q: %v, %v, want %v", name, got, err, want)
}

func TestLifeEndsWithTheProcessDespiteItsChildren(t *testing.T) {
	s := newSpace(t)
	c, in, name := lifeHelper(t, s.path)
	wantLives(t, s, name, true, true)
	wantState(t, s, "k", Kept)
	expect.NoError(t, c.Process.Signal(syscall.SIGKILL))
	expect.Value(c.Process.Wait())(t)
	wantLives(t, s, name, false, true)
	wantState(t, s, "k", Inherited)
	if err := in.Close(); err != nil { // the child ends
		t.Fatal(err)
	}
	expect.Eventually(t, "the key is free", func() bool { state, err := s.State(Byte("k")); return state == Free && err == nil })
}

func TestLifeOfThisProcess(t *testing.T) {
	s := newSpace(t)
	wantState(t, s, "k", Free) // and the file does not exist yet
	wantLives(t, s, "1:1", false, false)
	name := mustLive(t, s)
	expect.Same(t, "the name again", mustLive(t, s), name)
	wantLives(t, s, name, true, true)
	other := Open(s.path)
	expect.That(t, mustLive(t, other) != name, "two Spaces have one byte")
	wantLives(t, other, name, true, true)
	for _, bad := range []string{"", "1", ":", "x:1", "1:x", "1:-1", "1:2:3"} {
		wantLives(t, s, bad, false, false)
	}
	runtime.KeepAlive(s)
}

func TestLifeEndsWhenTheSpaceIsGarbage(t *testing.T) {
	s := newSpace(t)
	name := mustLive(t, Open(s.path))
	expect.Eventually(t, "the byte is free", func() bool {
		runtime.GC()
		lives, known, err := s.Lives(name)
		return !lives && known && err == nil
	})
}

// TestLifeInADeletedFile: the holder of the old file's lock may live, and
// nobody can see it.
func TestLifeInADeletedFile(t *testing.T) {
	s := newSpace(t)
	before := mustLive(t, s)
	expect.NoError(t, os.Remove(s.livesPath()))
	wantLives(t, s, before, false, false)
	other := Open(s.path)
	after := mustLive(t, other) // makes another file
	wantLives(t, s, before, false, false)
	wantLives(t, s, after, true, true)
	wantLives(t, other, mustLive(t, s), true, true)
	expect.Same(t, "deleted files that stay open, so that no inode number is used again", len(s.life.earlier), 1)
	runtime.KeepAlive(other)
}

func TestAKeyStaysWithItsHolder(t *testing.T) {
	s := newSpace(t)
	h := mustLock(t, s, Key{Name: "k"}, Key{Name: "shared", Shared: true})
	wantState(t, s, "k", Kept)
	wantState(t, Open(s.path), "k", Kept)
	wantState(t, s, "shared", Inherited) // shared keys do not name their holders
	// The next one marks it before this one has unmarked it.
	marked := Open(s.path).mark(claimsOf([]Key{{Name: "k"}}))
	mustRelease(t, h)
	next := mustLock(t, Open(s.path), Key{Name: "k"})
	wantState(t, s, "k", Kept)
	unmark(marked, claimsOf([]Key{{Name: "k"}}))
	wantState(t, s, "k", Kept)
	mustRelease(t, next)
	wantState(t, s, "k", Free)
}

func TestLifeCostsOneDescriptor(t *testing.T) {
	s := newSpace(t)
	for i := range 100 {
		mustRelease(t, mustLock(t, s, Key{Name: fmt.Sprint(i)}))
		mustLive(t, s)
	}
	open := 0
	for _, fd := range fdLinks(t) {
		if strings.HasPrefix(fd, filepath.Dir(s.path)) {
			open++
		}
	}
	expect.Same(t, "open descriptors", open, 1)
}

// fdLinks returns the targets of this process's descriptors.
func fdLinks(t *testing.T) []string {
	t.Helper()
	paths := expect.Value(filepath.Glob("/proc/self/fd/*"))(t)
	var links []string
	for _, path := range paths {
		if link, err := os.Readlink(path); err == nil { // the one used for the listing is gone
			links = append(links, link)
		}
	}
	return links
}

func TestTryLockAll(t *testing.T) {
	s := newSpace(t)
	try := func(s *Space, keys ...Key) *Held {
		t.Helper()
		return expect.Value(s.TryLockAll(keys))(t)
	}
	exclusive, shared, other := Key{Name: "k"}, Key{Name: "k", Shared: true}, Key{Name: "other"}
	for what, second := range map[string]*Space{"in the process": s, "in another": Open(s.path)} {
		t.Run(what, func(t *testing.T) {
			h := try(s, exclusive)
			wantState(t, s, "k", Kept)
			expect.That(t, try(second, other, exclusive) == nil && try(second, shared) == nil, "got a key that somebody has")
			mustRelease(t, try(Open(s.path), other)) // the failed try kept no key
			mustRelease(t, h)
			r := try(s, shared)
			expect.That(t, try(second, exclusive) == nil, "got a key that is shared")
			mustRelease(t, try(second, shared))
			mustRelease(t, r)
			mustRelease(t, try(second, exclusive, other))
			expect.That(t, idle(s) && idle(second), "the queue keeps unused keys")
		})
	}
	// A caller in line for a key is not overtaken.
	r := mustLock(t, s, shared)
	got := make(chan *Held, 1)
	go func() {
		h, err := Open(s.path).Lock(t.Context(), "k")
		expect.That(t, err == nil, "%v", err)
		got <- h
	}()
	expect.Eventually(t, "the exclusive one stands in the gate", func() bool { return !isFree(t, s, shared) })
	expect.That(t, try(Open(s.path), shared) == nil, "a shared try overtook an exclusive one")
	mustRelease(t, r)
	mustRelease(t, <-got)
}

func TestTryExistingCreatesNothing(t *testing.T) {
	s := newSpace(t)
	dir := filepath.Dir(s.path)
	keys := []Key{{Name: "k"}}
	try := func(want bool) {
		t.Helper()
		h, err := s.TryExisting(keys)
		expect.Must(t, err == nil && (h != nil) == want, "got the key: %t, error %v", h != nil, err)
		if h != nil {
			mustRelease(t, h)
		}
	}
	for _, missing := range []string{s.path, dir} {
		expect.NoError(t, os.RemoveAll(missing))
		try(false)
		_, err := os.Lstat(missing)
		expect.That(t, errors.Is(err, fs.ErrNotExist), "%s: %v", missing, err)
		expect.That(t, idle(s), "the queue keeps the key")
	}
	mustRelease(t, mustLock(t, s, keys[0])) // creates the file
	try(true)
	h := mustLock(t, s, keys[0])
	try(false)
	mustRelease(t, h)
}
