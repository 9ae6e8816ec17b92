package netns_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/sandbox"
	"github.com/embedcni/cni/netns"
)

func TestDoReturnsFnsError(t *testing.T) {
	h, _ := newNS(t)
	want := errors.New("any")
	if got := h.Do(func() error { return want }); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestDoSeesTheInterfacesInside(t *testing.T) {
	h, _ := newNS(t)
	var got string
	err := h.Do(func() error {
		links, err := net.Interfaces()
		for _, l := range links {
			got += fmt.Sprintf("%s %v\n", l.Name, l.Flags&net.FlagUp != 0)
		}
		return err
	})
	if want := "lo false\n"; err != nil || got != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

// TestDoAtAPath: it enters the namespace at the path, returns fn's error itself, and holds
// the namespace no longer than fn runs, however that ends.
func TestDoAtAPath(t *testing.T) {
	h, path := newNS(t)
	want := errors.New("any")
	enter := func(fn func()) error {
		return netns.Do(path, func() error {
			if id, err := netns.CurrentID(); err != nil || id != h.ID() {
				t.Errorf("in %s, %v, want %s", id, err, h.ID())
			}
			fn()
			return want
		})
	}
	before := openNamespaces(t)
	if before == 0 {
		t.Fatal("the open handle does not count")
	}
	if got := enter(func() {}); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	func() {
		defer func() {
			if got := recover(); got != want {
				t.Errorf("panic with %v, want %v", got, want)
			}
		}()
		t.Error(enter(func() { panic(want) }))
	}()
	done := make(chan struct{})
	go func() {
		defer close(done)
		t.Error(enter(runtime.Goexit))
	}()
	<-done
	expect.Same(t, "open namespaces", openNamespaces(t), before)
}

// openNamespaces counts the descriptors of namespaces that this process has open.
func openNamespaces(t *testing.T) (n int) {
	t.Helper()
	fds := expect.Value(os.ReadDir("/proc/self/fd"))(t)
	for _, fd := range fds {
		if link, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && (strings.HasPrefix(link, "net:") || strings.HasSuffix(link, "/ns")) {
			n++
		}
	}
	return n
}

func TestDoAtAPathThatIsNoNamespace(t *testing.T) {
	dir := t.TempDir()
	for path, want := range map[string]error{dir: netns.ErrNotNetNS, filepath.Join(dir, "missing"): fs.ErrNotExist} {
		err := netns.Do(path, func() error { t.Error("it ran"); return nil })
		if !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", path, err, want)
		}
	}
}

// TestDoRestoresThreads: afterwards one of the many goroutines would find a
// thread that is still in the namespace.
func TestDoRestoresThreads(t *testing.T) {
	outside := currentID(t)
	var handles [4]*netns.Handle
	for i := range handles {
		handles[i], _ = newNS(t)
	}
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			h := handles[i%len(handles)]
			for range 20 {
				err := h.Do(func() error {
					id, err := netns.CurrentID()
					if err == nil && id != h.ID() {
						err = fmt.Errorf("in %s, want %s", id, h.ID())
					}
					runtime.Gosched()
					return err
				})
				if err != nil {
					t.Error(err)
				}
				if id, err := netns.CurrentID(); err != nil || id != outside {
					t.Errorf("after Do in %s, %v, want %s", id, err, outside)
				}
			}
		})
	}
	wg.Wait()
	checkThreads(t, outside)
}

// checkThreads fails unless every thread of the process is in the namespace.
func checkThreads(t *testing.T, want netns.ID) {
	t.Helper()
	tasks := expect.Value(os.ReadDir("/proc/self/task"))(t)
	for _, task := range tasks {
		h, err := netns.Open("/proc/self/task/" + task.Name() + "/ns/net")
		if errors.Is(err, os.ErrNotExist) {
			continue // ended since
		}
		expect.NoError(t, err)
		if h.ID() != want {
			t.Errorf("thread %s is in %s, want %s", task.Name(), h.ID(), want)
		}
		h.Close()
	}
}

func TestDoNests(t *testing.T) {
	outer, _ := newNS(t)
	inner, _ := newNS(t)
	var got [3]netns.ID
	err := outer.Do(func() error {
		var err0, err2 error
		got[0], err0 = netns.CurrentID()
		err1 := inner.Do(func() (err error) {
			got[1], err = netns.CurrentID()
			return err
		})
		got[2], err2 = netns.CurrentID()
		return errors.Join(err0, err1, err2)
	})
	if want := [3]netns.ID{outer.ID(), inner.ID(), outer.ID()}; err != nil || got != want {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}

func TestDoLeavesTheLeadingThreadAlone(t *testing.T) {
	h, _ := newNS(t)
	for range 200 {
		expect.NoError(t, h.Do(func() error {
			if unix.Gettid() == unix.Getpid() {
				return errors.New("on the leading thread")
			}
			leading, err := netns.Open("/proc/self/ns/net")
			if err != nil {
				return err
			}
			if leading.ID() == h.ID() {
				return errors.New("the leading thread is inside")
			}
			return leading.Close()
		}))
	}
}

func TestDoRaisesPanicInCaller(t *testing.T) {
	h, _ := newNS(t)
	outside := currentID(t)
	type value struct{ n int }
	defer func() {
		if got := recover(); got != (value{7}) {
			t.Errorf("recovered %v, want %v", got, value{7})
		}
		checkThreads(t, outside)
	}()
	err := h.Do(func() error { panic(value{7}) })
	t.Errorf("Do returned %v", err)
}

func TestDoPassesGoexitOn(t *testing.T) {
	h, _ := newNS(t)
	outside := currentID(t)
	ended := make(chan bool)
	go func() {
		returned := false
		defer func() { ended <- returned }()
		_ = h.Do(func() error {
			runtime.Goexit()
			return nil
		})
		returned = true
	}()
	select {
	case returned := <-ended:
		if returned {
			t.Error("Do returned")
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Do hangs")
	}
	checkThreads(t, outside)
}

// TestDoDropsThreadThatCannotBeRestored: a thread without capabilities cannot
// return. It must end, because nothing else keeps other goroutines off it.
func TestDoDropsThreadThatCannotBeRestored(t *testing.T) {
	h, _ := newNS(t)
	outside := currentID(t)
	want := errors.New("any")
	var tid int
	got := h.Do(func() error {
		tid = unix.Gettid()
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&header, &none[0]); err != nil {
			return err
		}
		return want
	})
	if got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	expect.Eventually(t, "the end of the thread", func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", tid))
		return errors.Is(err, os.ErrNotExist)
	})
	checkThreads(t, outside)
}

func TestMain(m *testing.M) { os.Exit(sandbox.Main(m)) }
