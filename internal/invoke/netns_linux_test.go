package invoke

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"golang.org/x/sys/unix"
)

const insideEnv = "EMBEDCNI_INVOKE_INSIDE"

type handle struct{ f *os.File }

func (h handle) File() *os.File { return h.f }

// inNamespaces runs the rest of the calling test in another process, in new
// user and network namespaces, root or not. It reports whether this is that
// process. On a machine that does not allow it, the test fails.
func inNamespaces(t *testing.T) bool {
	t.Helper()
	if os.Getenv(insideEnv) != "" {
		return true
	}
	run := func(attr *syscall.SysProcAttr) ([]byte, error) {
		c := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v", "-test.count=1")
		c.Env = append(os.Environ(), insideEnv+"=1", raceEnv)
		c.SysProcAttr = attr
		return c.CombinedOutput()
	}
	out, err := run(&syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	})
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) && os.Geteuid() == 0 {
		out, err = run(&syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET})
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return false
}

// newNetNS makes a network namespace that lives as long as the returned file.
func newNetNS(t *testing.T) *os.File {
	t.Helper()
	type result struct {
		f   *os.File
		err error
	}
	made := make(chan result)
	own := ownNetNS(t)
	go func() {
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			made <- result{nil, err}
			return
		}
		f, err := os.Open(threadNetNS)
		if err = errors.Join(err, enter(own)); err == nil {
			runtime.UnlockOSThread()
		}
		made <- result{f, err}
	}()
	r := <-made
	if r.err != nil {
		t.Fatal(r.err)
	}
	t.Cleanup(func() { r.f.Close() })
	return r.f
}

// nameOf returns readlink's name of a namespace.
func nameOf(t *testing.T, ns *os.File) string {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(int(ns.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("net:[%d]", st.Ino)
}

func ownNetNS(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Open(threadNetNS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func runIn(t *testing.T, ns NetNS) string {
	t.Helper()
	req := scripted(t, "netns")
	req.NetNS = ns
	out, err := Run(context.Background(), req, Limits{})
	if err != nil {
		t.Errorf("%v: %s", err, out.Stderr)
	}
	return string(out.Stdout)
}

func TestDuty_R13_TheNetNSOfTheCallingThread(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	own, other := ownNetNS(t), newNetNS(t)
	if nameOf(t, own) == nameOf(t, other) {
		t.Fatal("there is one namespace only")
	}
	if got, want := runIn(t, nil), nameOf(t, own); got != want {
		t.Errorf("on an ordinary thread: %s, want %s", got, want)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked, as in BuildKit
		if err := enter(other); err != nil {
			t.Error(err)
			return
		}
		for range 5 {
			if got, want := runIn(t, nil), nameOf(t, other); got != want {
				t.Errorf("on a thread in another namespace: %s, want %s", got, want)
			}
		}
		if got, want := runIn(t, handle{own}), nameOf(t, own); got != want {
			t.Errorf("sent back: %s, want %s", got, want)
		}
		if got, want := runIn(t, nil), nameOf(t, other); got != want {
			t.Errorf("afterwards the thread is in %s, want %s", got, want)
		}
	}()
	<-done
}

func TestDuty_R13_AGivenNetNS(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	noLeak(t)
	own, other := ownNetNS(t), newNetNS(t)
	want := map[NetNS]string{nil: nameOf(t, own), handle{own}: nameOf(t, own), handle{other}: nameOf(t, other)}
	var wg sync.WaitGroup
	for range 10 {
		for ns, name := range want {
			wg.Add(1)
			go func() {
				defer wg.Done()
				if got := runIn(t, ns); got != name {
					t.Errorf("in %v: %s, want %s", ns, got, name)
				}
			}()
		}
	}
	wg.Wait()
	expect.Eventually(t, "every thread is where it was", func() bool { return threadsElsewhere(t, own) == 0 })
}

func threadsElsewhere(t *testing.T, own *os.File) int {
	t.Helper()
	links, err := filepath.Glob("/proc/self/task/*/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, link := range links {
		if name, err := os.Readlink(link); err == nil && name != nameOf(t, own) {
			n++
		}
	}
	return n
}

func TestANetNSThatIsNone(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	noLeak(t)
	own := ownNetNS(t)
	plain, err := os.Create(filepath.Join(t.TempDir(), "netns"))
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	req := scripted(t, "say started")
	req.NetNS = handle{plain}
	out, err := Run(context.Background(), req, Limits{})
	want := fmt.Sprintf("start %s: enter network namespace %s: invalid argument", req.Path, plain.Name())
	if len(out.Stdout) != 0 || !errors.Is(err, syscall.EINVAL) || err.Error() != want {
		t.Errorf("got  %q, %v\nwant %s", out.Stdout, err, want)
	}
	closed := ownNetNS(t)
	closed.Close()
	req.NetNS = handle{closed}
	if _, err := Run(context.Background(), req, Limits{}); !errors.Is(err, os.ErrClosed) || !strings.Contains(err.Error(), req.Path) {
		t.Errorf("got %v, want os.ErrClosed", err)
	}
	if n := threadsElsewhere(t, own); n != 0 {
		t.Errorf("%d threads are elsewhere", n)
	}
}
