package lock

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
)

// helperEnv makes this test binary one of the processes below.
const helperEnv = "EMBEDCNI_LOCK_HELPER"

func TestMain(m *testing.M) {
	switch os.Getenv(helperEnv) {
	case "":
		os.Exit(m.Run())
	case "hold":
		holdHelper(os.Args[1], false)
	case "hold-with-child":
		holdHelper(os.Args[1], true)
	case "hold-and-live":
		liveHelper(os.Args[1])
	case "child":
		io.Copy(io.Discard, os.Stdin)
	case "count":
		countHelper(os.Args[1], os.Args[2])
	}
}

// holdHelper locks "k", reports that, and holds it until its input ends. Its
// child inherits the file and ends with the same input.
func holdHelper(path string, child bool) {
	hold(Open(path), child, "locked")
}

// liveHelper is holdHelper with a child. It prints its liveness byte.
func liveHelper(path string) {
	s := Open(path)
	name, err := s.Life()
	if err != nil {
		panic(err)
	}
	hold(s, true, name)
}

func hold(s *Space, child bool, say string) {
	h, err := s.Lock(context.Background(), "k")
	if err != nil {
		panic(err)
	}
	if child {
		c := exec.Command("/proc/self/exe")
		c.Env = helperEnviron("child")
		c.Stdin = os.Stdin
		c.ExtraFiles = []*os.File{h.File()}
		if err := c.Start(); err != nil {
			panic(err)
		}
	}
	fmt.Println(say)
	io.Copy(io.Discard, os.Stdin)
}

// countHelper increments the number in a file, protected only by the lock.
func countHelper(path, file string) {
	s := Open(path)
	for range countRounds {
		h, err := s.Lock(context.Background(), "counter")
		if err != nil {
			panic(err)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			panic(err)
		}
		n, err := strconv.Atoi(string(text))
		if err != nil {
			panic(err)
		}
		if err := os.WriteFile(file, []byte(strconv.Itoa(n+1)), 0o600); err != nil {
			panic(err)
		}
		if err := h.Release(); err != nil {
			panic(err)
		}
	}
}

const countRounds = 100

// helper starts a helper process. Closing the returned input ends it and its
// children.
func helper(t *testing.T, mode string, args ...string) (*exec.Cmd, io.Closer) {
	t.Helper()
	c, in, said := startHelper(t, mode, args...)
	expect.Must(t, !strings.HasPrefix(mode, "hold") || said == "locked", "helper said %q", said)
	return c, in
}

// lifeHelper starts a helper that holds "k", as does its child, and returns the
// name of its liveness byte.
func lifeHelper(t *testing.T, path string) (c *exec.Cmd, in io.Closer, name string) {
	t.Helper()
	return startHelper(t, "hold-and-live", path)
}

func startHelper(t *testing.T, mode string, args ...string) (*exec.Cmd, io.Closer, string) {
	t.Helper()
	c := exec.Command("/proc/self/exe", args...)
	c.Env = helperEnviron(mode)
	c.Stderr = os.Stderr
	in := expect.Value(c.StdinPipe())(t)
	out, err := c.StdoutPipe()
	expect.NoError(t, err)
	expect.NoError(t, c.Start())
	t.Cleanup(func() { in.Close(); c.Process.Kill(); c.Wait() })
	said := ""
	if strings.HasPrefix(mode, "hold") {
		said, err = bufio.NewReader(out).ReadString('\n')
		expect.Must(t, err == nil, "helper said %q, %v", said, err)
	}
	return c, in, strings.TrimSpace(said)
}

// helperEnviron is a helper's environment. The race detector would delay each
// exit by a second.
func helperEnviron(mode string) []string {
	return append(os.Environ(), helperEnv+"="+mode, "GORACE=atexit_sleep_ms=0")
}

func fds(t *testing.T) int {
	t.Helper()
	return len(expect.Value(os.ReadDir("/proc/self/fd"))(t))
}

func TestLockExcludesProcesses(t *testing.T) {
	dir := t.TempDir()
	counter := filepath.Join(dir, "counter")
	expect.NoError(t, os.WriteFile(counter, []byte("0"), 0o600))
	const processes = 4
	var running []*exec.Cmd
	for range processes {
		c, _ := helper(t, "count", filepath.Join(dir, "lock"), counter)
		running = append(running, c)
	}
	for _, c := range running {
		expect.NoError(t, c.Wait())
	}
	expect.Same(t, "counted", string(expect.Value(os.ReadFile(counter))(t)), strconv.Itoa(processes*countRounds))
}

func TestAKilledHolderFreesItsLocks(t *testing.T) {
	s := newSpace(t)
	c, _ := helper(t, "hold", s.path)
	expect.Must(t, !isFree(t, s, Key{Name: "k"}), "the helper holds nothing")
	expect.NoError(t, c.Process.Signal(syscall.SIGKILL))
	mustRelease(t, mustLock(t, s, Key{Name: "k"}))
}

func TestAChildKeepsTheLocksOfAKilledHolder(t *testing.T) {
	s := newSpace(t)
	c, in := helper(t, "hold-with-child", s.path)
	expect.NoError(t, c.Process.Signal(syscall.SIGKILL))
	expect.Value(c.Process.Wait())(t)
	expect.That(t, !isFree(t, s, Key{Name: "k"}), "free, though a child still has the file")
	expect.NoError(t, in.Close())
	mustRelease(t, mustLock(t, s, Key{Name: "k"}))
}

func TestReleaseFreesAnInheritedLock(t *testing.T) {
	s := newSpace(t)
	h := mustLock(t, s, Key{Name: "k"})
	c := exec.Command("/proc/self/exe")
	c.Env = helperEnviron("child")
	c.ExtraFiles = []*os.File{h.File()}
	in := expect.Value(c.StdinPipe())(t)
	expect.NoError(t, c.Start())
	defer c.Wait()
	defer in.Close()
	expect.That(t, !isFree(t, s, Key{Name: "k"}), "free before Release")
	mustRelease(t, h)
	mustRelease(t, mustLock(t, Open(s.path), Key{Name: "k"})) // although the child keeps the file
}

// TestGivingUpOnAnotherProcess limits the threads that stay in the kernel: one
// for each key, regardless of the number of attempts and callers.
func TestGivingUpOnAnotherProcess(t *testing.T) {
	s := newSpace(t)
	_, in := helper(t, "hold", s.path)
	goroutines, files := runtime.NumGoroutine(), fds(t)
	for range 20 {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
		start := time.Now()
		_, err := s.Lock(ctx, "k")
		cancel()
		took := time.Since(start)
		expect.Within(t, "giving up", took, patience)
		want := fmt.Sprintf("lock %q in %s: held by another process: context deadline exceeded", "k", s.path)
		expect.Must(t, errors.Is(err, context.DeadlineExceeded) && err.Error() == want, "got  %v\nwant %s", err, want)
	}
	expect.Eventually(t, "one goroutine waits in the kernel", func() bool { return runtime.NumGoroutine() <= goroutines+1 })
	n := fds(t) - files
	expect.That(t, n <= 1, "%d files stay open", n)
	expect.NoError(t, in.Close())
	mustRelease(t, mustLock(t, s, Key{Name: "k"}))
	expect.Eventually(t, "no goroutine left", func() bool { return runtime.NumGoroutine() <= goroutines })
	expect.Eventually(t, "no file left", func() bool { return fds(t) <= files })
}

func TestManySharedWaitersShareOneThread(t *testing.T) {
	s := newSpace(t)
	_, in := helper(t, "hold", s.path)
	const n = 50
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			h, err := s.LockAll(context.Background(), []Key{{Name: "k", Shared: true}})
			if err != nil {
				t.Error(err)
				return
			}
			expect.Succeeds(t, "Release", h.Release())
		})
	}
	expect.Eventually(t, "one waits in the kernel", func() bool { return len(inKernel(s)) == 1 })
	expect.NoError(t, in.Close())
	wg.Wait()
	expect.Eventually(t, "no wait left", func() bool { return len(inKernel(s)) == 0 })
}

func inKernel(s *Space) []span {
	s.waits.mu.Lock()
	defer s.waits.mu.Unlock()
	var spans []span
	for sp := range s.waits.m {
		spans = append(spans, sp)
	}
	return spans
}

// TestSharedHoldersOfAnotherProcessDoNotStarveExclusiveOnes uses two spaces in
// place of two processes: the kernel makes no difference.
func TestSharedHoldersOfAnotherProcessDoNotStarveExclusiveOnes(t *testing.T) {
	gc := newSpace(t)
	adds := Open(gc.path)
	r := mustLock(t, adds, Key{Name: "gc", Shared: true})
	got := make(chan *Held, 1)
	go func() {
		h, err := gc.Lock(context.Background(), "gc")
		expect.That(t, err == nil, "%v", err)
		got <- h
	}()
	waitsFor := span{offset: Byte("gc")}
	expect.Eventually(t, "the exclusive one waits in the kernel", func() bool {
		spans := inKernel(gc)
		return len(spans) == 1 && spans[0] == waitsFor
	})
	expect.That(t, !isFree(t, adds, Key{Name: "gc", Shared: true}), "a shared holder overtook a waiting exclusive one")
	mustRelease(t, r)
	mustRelease(t, <-got)
	mustRelease(t, mustLock(t, Open(adds.path), Key{Name: "gc", Shared: true})) // the gate is open again
}

func TestAWaiterNoticesADeletedFile(t *testing.T) {
	s := newSpace(t)
	other := Open(s.path)
	h := mustLock(t, s, Key{Name: "k"})
	got := make(chan *Held, 1)
	go func() {
		h, err := other.Lock(context.Background(), "k")
		expect.That(t, err == nil, "%v", err)
		got <- h
	}()
	expect.Eventually(t, "the other waits in the kernel", func() bool { return len(inKernel(other)) == 1 })
	expect.NoError(t, os.RemoveAll(filepath.Dir(s.path)))
	mustRelease(t, h)
	second := <-got
	current, err := isCurrent(second.File(), s.path)
	expect.That(t, err == nil && current, "the lock is on a file that no other process opens (%v, %v)", current, err)
	expect.That(t, !isFree(t, s, Key{Name: "k"}), "free for a third")
	mustRelease(t, second)
}

func TestAnUnusableFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	expect.NoError(t, os.WriteFile(file, nil, 0o600))
	dir := t.TempDir()
	for _, tt := range []struct {
		name, path string
		cause      error
	}{
		{"below a file", filepath.Join(file, "lock"), syscall.ENOTDIR},
		{"below a directory nobody can make", "/proc/embedcni/lock", syscall.ENOENT},
		{"a directory", dir, syscall.EISDIR},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := Open(tt.path)
			for range 2 { // the second would hang if the first had kept the key
				h, err := s.Lock(context.Background(), "k")
				expect.Must(t, errors.Is(err, ErrUnavailable) && errors.Is(err, tt.cause) && h == nil,
					"got %v, %v; want ErrUnavailable and %v", h, err, tt.cause)
			}
			h := expect.Value(s.LockLocal(context.Background(), []Key{{Name: "k"}}))(t)
			expect.That(t, h.File() == nil, "a local lock has a file")
			expect.That(t, !isFreeHere(s, "k"), "a local lock holds nothing")
			mustRelease(t, h)
		})
	}
}

func TestTheFileIsPrivateAndEmpty(t *testing.T) {
	s := newSpace(t)
	mustRelease(t, mustLock(t, s, Key{Name: "k"}))
	type entry struct {
		mode os.FileMode
		size int64
	}
	info := expect.Value(os.Stat(s.path))(t)
	parent := expect.Value(os.Stat(filepath.Dir(s.path)))(t)
	if got, want := (entry{info.Mode(), info.Size()}), (entry{0o600, 0}); got != want {
		t.Errorf("the file is %+v, want %+v", got, want)
	}
	expect.Same(t, "its directory", parent.Mode(), os.ModeDir|0o700)
}
