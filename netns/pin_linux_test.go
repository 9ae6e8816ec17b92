package netns_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netns"
)

// tree lists the files below dir.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var names []string
	expect.NoError(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && path != dir {
			names = append(names, e.Type().String()+" "+strings.TrimPrefix(path, dir+"/"))
		}
		return err
	}))
	return strings.Join(names, "\n")
}

func TestCreateMakesDirectoriesAndRemoveTakesThePin(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a", "b", "ns")
	h := expect.Value(netns.Create(path))(t)
	defer h.Close()
	const dirs = "d--------- a\nd--------- a/b"
	expect.Same(t, "after Create", tree(t, dir), dirs+"\n---------- a/b/ns")
	for range 2 {
		expect.NoError(t, netns.Remove(path))
		expect.Same(t, "after Remove", tree(t, dir), dirs)
	}
}

func TestCreateLeavesExistingFiles(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	expect.NoError(t, os.WriteFile(file, []byte("mine"), 0o600))
	_, pinned := newNS(t)
	for _, path := range []string{file, dir, pinned} {
		before := tree(t, dir)
		if _, err := netns.Create(path); !errors.Is(err, fs.ErrExist) {
			t.Errorf("%s: got %v, want %v", path, err, fs.ErrExist)
		}
		expect.Same(t, path, tree(t, dir), before)
	}
	if h, err := netns.Open(pinned); err != nil {
		t.Errorf("the neighbour's pin: %v", err)
	} else {
		h.Close()
	}
}

func TestCreateThatFailsLeavesDirectoriesAlone(t *testing.T) {
	outside := currentID(t)
	t.Run("below a file", func(t *testing.T) {
		dir := t.TempDir()
		file := filepath.Join(dir, "file")
		expect.NoError(t, os.WriteFile(file, nil, 0o600))
		if _, err := netns.Create(filepath.Join(file, "a", "ns")); !errors.Is(err, unix.ENOTDIR) {
			t.Errorf("got %v, want %v", err, unix.ENOTDIR)
		}
		expect.Same(t, "left", tree(t, dir), "---------- file")
	})
	// A name that is too long fails after the directories were made.
	t.Run("after the directories", func(t *testing.T) {
		dir := t.TempDir()
		path := filepath.Join(dir, "a", "b", strings.Repeat("x", 256))
		if _, err := netns.Create(path); !errors.Is(err, unix.ENAMETOOLONG) {
			t.Errorf("got %v, want %v", err, unix.ENAMETOOLONG)
		}
		expect.Same(t, "left", tree(t, dir), "d--------- a\nd--------- a/b")
	})
	// Only the limit prevents the unshare, even for root.
	t.Run("after the file", func(t *testing.T) {
		const limit = "/proc/sys/user/max_net_namespaces"
		was := expect.Value(os.ReadFile(limit))(t)
		if err := os.WriteFile(limit, []byte("0"), 0); err != nil {
			t.Skip("the limit is not ours to set: no user namespace")
		}
		defer func() {
			if err := os.WriteFile(limit, was, 0); err != nil {
				t.Error(err)
			}
		}()
		dir := t.TempDir()
		if _, err := netns.Create(filepath.Join(dir, "a", "ns")); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("got %v, want %v", err, unix.ENOSPC)
		}
		expect.Same(t, "left", tree(t, dir), "d--------- a")
	})
	checkThreads(t, outside)
}

func TestCreateOfOnePathInParallelSucceedsOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ns")
	var (
		wg  sync.WaitGroup
		got [8]error
	)
	for i := range got {
		wg.Go(func() {
			h, err := netns.Create(path)
			if err == nil {
				err = h.Close()
			}
			got[i] = err
		})
	}
	wg.Wait()
	succeeded := 0
	for _, err := range got {
		if err == nil {
			succeeded++
		} else if !errors.Is(err, fs.ErrExist) {
			t.Errorf("got %v, want %v", err, fs.ErrExist)
		}
	}
	expect.Same(t, "calls that succeeded", succeeded, 1)
	expect.NoError(t, netns.Remove(path))
}

func TestRemoveInterruptedAnywhere(t *testing.T) {
	_, source := newNS(t)
	tests := map[string]func(path string) error{
		"nothing there":        func(string) error { return nil },
		"unmounted only":       func(path string) error { return os.WriteFile(path, nil, 0o444) },
		"mounted several time": func(path string) error { return stack(source, path, 3) },
	}
	for name, prepare := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "ns")
			expect.NoError(t, prepare(path))
			expect.NoError(t, netns.Remove(path))
			expect.Same(t, "left", tree(t, dir), "")
		})
	}
	expect.NoError(t, netns.Remove(filepath.Join(t.TempDir(), "no", "directory")))
}

func stack(source, path string, n int) error {
	err := os.WriteFile(path, nil, 0o444)
	for range n {
		err = errors.Join(err, unix.Mount(source, path, "", unix.MS_BIND, ""))
	}
	return err
}

func TestRemoveInParallel(t *testing.T) {
	for range 20 {
		path := filepath.Join(t.TempDir(), "ns")
		h := expect.Value(netns.Create(path))(t)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if err := netns.Remove(path); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		h.Close()
	}
}

func TestRemoveRefusesOtherFiles(t *testing.T) {
	dir := t.TempDir()
	_, pinned := newNS(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	expect.NoError(t, errors.Join(
		os.WriteFile(at("file"), []byte("mine"), 0o600),
		os.Mkdir(at("directory"), 0o755),
		os.Symlink(pinned, at("symlink")),
		unix.Mkfifo(at("fifo"), 0o600),
		os.WriteFile(at("uts"), nil, 0o600),
		unix.Mount("/proc/self/ns/uts", at("uts"), "", unix.MS_BIND, ""),
		os.Mkdir(at("tmpfs"), 0o755),
		unix.Mount("tmpfs", at("tmpfs"), "tmpfs", 0, ""),
	))
	defer func() {
		if err := errors.Join(unix.Unmount(at("uts"), 0), unix.Unmount(at("tmpfs"), 0)); err != nil {
			t.Error(err)
		}
	}()
	before := tree(t, dir)
	for _, path := range []string{
		at("file"), at("directory"), at("symlink"), at("fifo"), at("uts"), at("tmpfs"), "/proc/self/ns/net",
	} {
		if err := netns.Remove(path); !errors.Is(err, netns.ErrNotNetNS) {
			t.Errorf("%s: got %v, want %v", path, err, netns.ErrNotNetNS)
		}
	}
	expect.Same(t, "afterwards", tree(t, dir), before)
	if h, err := netns.Open(pinned); err != nil {
		t.Errorf("the symlink's target: %v", err)
	} else {
		h.Close()
	}
}
