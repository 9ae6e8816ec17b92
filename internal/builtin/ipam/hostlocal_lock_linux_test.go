package ipam

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/plainfile"
)

// TestTheLockIsWaitedFor: a caller waits for another process's lock while its
// context lasts.
func TestTheLockIsWaitedFor(t *testing.T) {
	base := t.TempDir()
	config := configFor(base, dual)
	p := NewHostLocal()
	assign(t, p, call(config, "a"))
	lock := expect.Value(os.Open(base + "/podnet/lock"))(t)
	defer lock.Close()
	// The reference plugin locks it like this, and the oracle compares that.
	expect.NoError(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	var wg sync.WaitGroup
	for range 3 { // one waits in the kernel, the others in line
		wg.Go(func() {
			expect.Is(t, expect.Err(p.Add(ctx, call(config, "b"))), context.DeadlineExceeded)
		})
	}
	wg.Wait()
	done := make(chan error)
	go func() {
		_, err := p.Add(t.Context(), call(config, "b"))
		done <- err
	}()
	expect.NoError(t, unix.Flock(int(lock.Fd()), unix.LOCK_UN))
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestAComparisonWaitsForNoLock: whoever holds the lock may hang, and Health and Recover
// look at all containers.
func TestAComparisonWaitsForNoLock(t *testing.T) {
	base := t.TempDir()
	p, r := NewHostLocal(), call(configFor(base, dual), "a")
	assign(t, p, r)
	lock := expect.Value(os.Open(base + "/podnet/lock"))(t)
	defer lock.Close()
	expect.NoError(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	ctx, cancel := context.WithTimeout(t.Context(), expect.Patience)
	defer cancel()
	expect.NoError(t, p.Check(ctx, r)) // its addresses are those of its files
	r.PrevResult = result(t, "10.1.0.2/24", "fd00::2/64")
	expect.NoError(t, p.Check(ctx, r))
	r.PrevResult = result(t, "10.1.0.3/24", "fd00::2/64")
	expect.Is(t, p.Check(ctx, r), fs.ErrNotExist)
}

// TestNoFileIsEverEmpty: a file is never visible before it has its content.
func TestNoFileIsEverEmpty(t *testing.T) {
	base := t.TempDir()
	dir := base + "/podnet"
	config := configFor(base, `"subnet": "10.1.0.0/16"`)
	p := NewHostLocal()
	assign(t, p, call(config, "first"))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 300 {
			if _, err := p.Add(t.Context(), call(config, fmt.Sprint("c", i))); err != nil {
				t.Error(err)
			}
		}
	}()
	for looking := true; looking; {
		select {
		case <-done:
			looking = false
		default:
		}
		for name, content := range files(t, dir) {
			if content == "" && name != "lock" {
				t.Fatalf("%s is empty", name)
			}
		}
	}
}

// TestPublishByLink covers file systems without unnamed files.
func TestPublishByLink(t *testing.T) {
	h, err := newDirectory(t.TempDir()).acquire(t.Context(), true)
	expect.NoError(t, err)
	fill(t, h.path, map[string]string{unfinished: "left by a process that was killed, and long"})
	for range 2 {
		err = h.publishByLink("10.1.0.2", "a\r\neth0")
	}
	expect.Is(t, err, fs.ErrExist)
	want := map[string]string{"lock": "", "10.1.0.2": "a\r\neth0"}
	if got := files(t, h.path); !maps.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if err := h.release(); err != nil {
		t.Error(err)
	}
}

// TestAPreparedFileOfAnotherMount is not used: it was opened in another mount namespace.
func TestAPreparedFileOfAnotherMount(t *testing.T) {
	h := expect.Value(newDirectory(t.TempDir()).acquire(t.Context(), true))(t)
	other := t.TempDir()
	expect.NoError(t, unix.Mount("tmpfs", other, "tmpfs", 0, ""))
	h.prepared = plainfile.Prepare(other, 0o600)
	if err := h.publish("10.1.0.2", "a\r\neth0"); err != nil {
		t.Error(err)
	}
	want := map[string]string{"lock": "", "10.1.0.2": "a\r\neth0"}
	if got := files(t, h.path); !maps.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if err := errors.Join(h.release(), unix.Unmount(other, 0)); err != nil {
		t.Error(err)
	}
}

func TestDirectoryRemovedMeanwhile(t *testing.T) {
	base := t.TempDir()
	p := NewHostLocal()
	for range 3 {
		want := []string{"10.1.0.2/24 via 10.1.0.1", "fd00::2/64 via fd00::1"}
		if got := assign(t, p, call(configFor(base, dual), "a")); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		expect.NoError(t, os.RemoveAll(base))
	}
}
