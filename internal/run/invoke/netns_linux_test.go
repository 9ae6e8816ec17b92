package invoke

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/thread"
	"github.com/embedcni/cni/netns"
)

const insideEnv = "EMBEDCNI_INVOKE_INSIDE"

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
	expect.Must(t, err == nil, "%v\n%s", err, out)
	return false
}

// newNetNS makes a network namespace that lives as long as the returned handle.
func newNetNS(t *testing.T) (ns *netns.Handle) {
	t.Helper()
	expect.NoError(t, ownNetNS(t).Do(func() (err error) { // which moves the thread back
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		ns, err = netns.Current()
		return err
	}))
	t.Cleanup(func() { expect.NoError(t, ns.Close()) })
	return ns
}

// nameOf returns readlink's name of a namespace.
func nameOf(ns *netns.Handle) string { return fmt.Sprintf("net:[%d]", ns.ID().Ino) }

func ownNetNS(t *testing.T) *netns.Handle {
	t.Helper()
	own := expect.Value(netns.Current())(t)
	t.Cleanup(func() { expect.NoError(t, own.Close()) })
	return own
}

// in returns a Request's In for a namespace; nil for none.
func in(ns *netns.Handle) func(func() error) error {
	if ns == nil {
		return nil
	}
	return func(start func() error) error { return thread.In(ns, start) }
}

func runIn(t *testing.T, ns *netns.Handle) string {
	t.Helper()
	req := scripted(t, "netns")
	req.In = in(ns)
	out, err := Run(context.Background(), req, Limits{})
	expect.That(t, err == nil, "%v: %s", err, out.Stderr)
	return string(out.Stdout)
}

func TestDuty_R13_AGivenNetNS(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	noLeak(t)
	own, other := ownNetNS(t), newNetNS(t)
	want := map[*netns.Handle]string{nil: nameOf(own), own: nameOf(own), other: nameOf(other)}
	var wg sync.WaitGroup
	for range 10 {
		for ns, name := range want {
			wg.Go(func() {
				expect.Same(t, fmt.Sprint("in ", ns), runIn(t, ns), name)
			})
		}
	}
	wg.Wait()
	expect.Eventually(t, "every thread is where it was", func() bool { return threadsElsewhere(t, own) == 0 })
}

func threadsElsewhere(t *testing.T, own *netns.Handle) int {
	t.Helper()
	links := expect.Value(filepath.Glob("/proc/self/task/*/ns/net"))(t)
	n := 0
	for _, link := range links {
		if name, err := os.Readlink(link); err == nil && name != nameOf(own) {
			n++
		}
	}
	return n
}

func TestANamespaceThatCannotBeEntered(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	noLeak(t)
	own, closed := ownNetNS(t), newNetNS(t)
	expect.NoError(t, closed.Close())
	req := scripted(t, "say started")
	req.In = in(closed)
	out, err := Run(context.Background(), req, Limits{})
	expect.That(t, len(out.Stdout) == 0 && errors.Is(err, os.ErrClosed) && errors.Is(err, ErrNotStarted) && strings.Contains(err.Error(), req.Path),
		"got %q, %v, want os.ErrClosed", out.Stdout, err)
	expect.Same(t, "threads elsewhere", threadsElsewhere(t, own), 0)
}
