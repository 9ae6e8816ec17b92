package thread

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/sandbox"
	"github.com/embedcni/cni/netns"
)

func TestMain(m *testing.M) {
	if dir, ok := os.LookupEnv(childEnv); ok {
		err := AtRoot(dir, func() error { return nil })
		fmt.Print(errors.Is(err, ErrRootNotPermitted), errors.Is(err, fs.ErrPermission), err)
		os.Exit(0)
	}
	os.Exit(sandbox.Main(m))
}

func TestInStaysOnAThreadThatIsInside(t *testing.T) {
	outside, err := netns.Current()
	expect.NoError(t, err)
	path := filepath.Join(t.TempDir(), "other")
	other, err := netns.Create(path)
	expect.NoError(t, err)
	t.Cleanup(func() { expect.NoError(t, errors.Join(outside.Close(), other.Close(), netns.Remove(path))) })
	type seen struct {
		ns     netns.ID
		thread int
	}
	look := func(ns *netns.Handle) (s seen) {
		t.Helper()
		expect.NoError(t, In(ns, func() (err error) {
			s.thread = unix.Gettid()
			s.ns, err = netns.CurrentID()
			return err
		}))
		return s
	}
	err = other.Do(func() error { // locks the thread
		here := unix.Gettid()
		if got, want := look(other), (seen{other.ID(), here}); got != want {
			t.Errorf("inside already: %+v, want %+v", got, want)
		}
		got := look(outside)
		expect.That(t, got.ns == outside.ID() && got.thread != here, "elsewhere: %+v, want in %v on another thread than %d", got, outside.ID(), here)
		return nil
	})
	expect.That(t, err == nil, "%v", err)
	failed := errors.New("failed")
	expect.Is(t, In(outside, func() error { return failed }), failed)
}

// TestMissing drops capabilities of one thread, which ends with the goroutine.
func TestMissing(t *testing.T) {
	done := make(chan []string, 2)
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocks: the thread is not used again
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var has [2]unix.CapUserData
		if err := unix.Capget(&header, &has[0]); err != nil {
			t.Error(err)
			return
		}
		for _, drop := range []uint32{1 << unix.CAP_NET_ADMIN, 1 << unix.CAP_SYS_ADMIN} {
			has[0].Effective &^= drop
			if err := unix.Capset(&header, &has[0]); err != nil {
				t.Error(err)
				return
			}
			lacks, err := MissingCapabilities()
			expect.That(t, err == nil, "%v", err)
			done <- lacks
		}
	}()
	for _, want := range [][]string{{"CAP_NET_ADMIN"}, {"CAP_NET_ADMIN", "CAP_SYS_ADMIN"}} {
		expect.Same(t, "missing", <-done, want)
	}
}

// childEnv makes the test binary a program that enters a root, and says how that went.
const childEnv = "EMBEDCNI_ROOT_CHILD"

// TestPathsAreThoseOfTheRoot: files, absolute links and the working directory; and nobody
// else has another root, neither meanwhile nor afterwards.
func TestPathsAreThoseOfTheRoot(t *testing.T) {
	root := t.TempDir()
	expect.NoError(t, os.WriteFile(filepath.Join(root, "file"), []byte("inside"), 0o644),
		os.Symlink("/file", filepath.Join(root, "link")))
	outside, work := expect.Value(os.Readlink("/proc/self/root"))(t), expect.Value(os.Getwd())(t)
	failed := errors.New("failed")
	for range 20 {
		var threads sync.WaitGroup
		err := AtRoot(root, func() error {
			expect.Same(t, "on the leading thread", unix.Gettid() == unix.Getpid(), false)
			for _, path := range []string{"/link", "file", "/../../file"} {
				data, err := os.ReadFile(path)
				expect.That(t, err == nil && string(data) == "inside", "%s: %q, %v", path, data, err)
			}
			for range 4 {
				threads.Go(func() {
					expect.Succeeds(t, "Stat", expect.Err(os.Stat(root)))
				})
			}
			threads.Wait()
			return failed
		})
		expect.Is(t, err, failed)
	}
	expect.Same(t, "root", expect.Value(os.Readlink("/proc/self/root"))(t), outside)
	for _, thread := range expect.Value(filepath.Glob("/proc/self/task/*/root"))(t) {
		if at, err := os.Readlink(thread); err == nil && at != outside && at != root { // a thread that ends may still be seen
			t.Errorf("%s is %s", thread, at)
		}
	}
	expect.Same(t, "working directory", expect.Value(os.Getwd())(t), work)
}

func TestARootThatCannotBeEntered(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	expect.NoError(t, os.WriteFile(file, nil, 0o755))
	for path, want := range map[string]error{filepath.Join(dir, "none"): fs.ErrNotExist, file: unix.ENOTDIR} {
		var at *fs.PathError
		err := AtRoot(path, func() error { t.Error("called"); return nil })
		expect.That(t, errors.Is(err, want) && errors.As(err, &at) && at.Path == path, "%s: %v", path, err)
	}
}

// TestNotPermitted: a process without CAP_SYS_CHROOT is told so.
func TestNotPermitted(t *testing.T) {
	dir := t.TempDir()
	child := exec.Command("/proc/self/exe")
	child.Env = append(os.Environ(), childEnv+"="+dir)
	var said []byte
	failed := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread loses the capability for its children
		err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_SYS_CHROOT, 0, 0, 0)
		if err == nil {
			said, err = child.CombinedOutput()
		}
		failed <- err
	}()
	expect.NoError(t, <-failed)
	expect.Same(t, "error", string(said), "true true chroot "+dir+": "+ErrRootNotPermitted.Error())
}

func ExampleAtRoot() {
	root, err := os.MkdirTemp("", "root")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(root)
	if err := os.WriteFile(filepath.Join(root, "hello"), nil, 0o644); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(AtRoot(root, func() error { _, err := os.Stat("/hello"); return err }))
	// Output: <nil>
}
