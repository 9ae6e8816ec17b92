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
)

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
				if data, err := os.ReadFile(path); err != nil || string(data) != "inside" {
					t.Errorf("%s: %q, %v", path, data, err)
				}
			}
			for range 4 {
				threads.Go(func() {
					if _, err := os.Stat(root); err != nil {
						t.Error(err)
					}
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
		if !errors.Is(err, want) || !errors.As(err, &at) || at.Path != path {
			t.Errorf("%s: %v", path, err)
		}
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
