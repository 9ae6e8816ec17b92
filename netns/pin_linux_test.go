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
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && path != dir {
			names = append(names, e.Type().String()+" "+strings.TrimPrefix(path, dir+"/"))
		}
		return err
	})
	expect.NoError(t, err)
	return strings.Join(names, "\n")
}

func TestCreateMakesDirectoriesAndRemoveTakesThePin(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a", "b", "ns")
	h, err := netns.Create(path)
	expect.NoError(t, err)
	defer h.Close()
	const dirs = "d--------- a\nd--------- a/b"
	if got, want := tree(t, dir), dirs+"\n---------- a/b/ns"; got != want {
		t.Errorf("after Create:\n%s\nwant:\n%s", got, want)
	}
	for range 2 {
		expect.NoError(t, netns.Remove(path))
		if got := tree(t, dir); got != dirs {
			t.Errorf("after Remove:\n%s\nwant:\n%s", got, dirs)
		}
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
		if after := tree(t, dir); after != before {
			t.Errorf("%s: before:\n%s\nafter:\n%s", path, before, after)
		}
	}
	if h, err := netns.Open(pinned); err != nil {
		t.Errorf("the neighbour's pin: %v", err)
	} else {
		h.Close()
	}
}

func TestCreateThatFailsLeavesNothing(t *testing.T) {
	outside := currentID(t)
	t.Run("below a file", func(t *testing.T) {
		dir := t.TempDir()
		file := filepath.Join(dir, "file")
		expect.NoError(t, os.WriteFile(file, nil, 0o600))
		if _, err := netns.Create(filepath.Join(file, "a", "ns")); !errors.Is(err, unix.ENOTDIR) {
			t.Errorf("got %v, want %v", err, unix.ENOTDIR)
		}
		if got, want := tree(t, dir), "---------- file"; got != want {
			t.Errorf("left: %s, want %s", got, want)
		}
	})
	// A name that is too long fails after the directories were made.
	t.Run("after the directories", func(t *testing.T) {
		dir := t.TempDir()
		path := filepath.Join(dir, "a", "b", strings.Repeat("x", 256))
		if _, err := netns.Create(path); !errors.Is(err, unix.ENAMETOOLONG) {
			t.Errorf("got %v, want %v", err, unix.ENAMETOOLONG)
		}
		if got := tree(t, dir); got != "" {
			t.Errorf("left: %s", got)
		}
	})
	// Only the limit prevents the unshare, even for root.
	t.Run("after the file", func(t *testing.T) {
		const limit = "/proc/sys/user/max_net_namespaces"
		was, err := os.ReadFile(limit)
		expect.NoError(t, err)
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
		if got := tree(t, dir); got != "" {
			t.Errorf("left: %s", got)
		}
	})
	checkThreads(t, outside)
}

// TestCreateInParallelInOneNewDirectory: every second one fails and cleans up
// the directory that the others use.
func TestCreateInParallelInOneNewDirectory(t *testing.T) {
	for range 20 {
		dir := filepath.Join(t.TempDir(), "a", "b")
		var wg sync.WaitGroup
		for i := range 16 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				if i%2 == 0 {
					_, err := netns.Create(filepath.Join(dir, strings.Repeat("x", 256)))
					if !errors.Is(err, unix.ENAMETOOLONG) {
						t.Errorf("got %v, want %v", err, unix.ENAMETOOLONG)
					}
					return
				}
				path := filepath.Join(dir, string(rune('a'+i)))
				h, err := netns.Create(path)
				if err != nil {
					t.Error(err)
					return
				}
				if err := errors.Join(h.Close(), netns.Remove(path)); err != nil {
					t.Error(err)
				}
			}()
		}
		wg.Wait()
	}
}

func TestCreateOfOnePathInParallelSucceedsOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ns")
	var (
		wg  sync.WaitGroup
		got [8]error
	)
	for i := range got {
		wg.Add(1)
		go func() {
			defer wg.Done()
			h, err := netns.Create(path)
			if err == nil {
				err = h.Close()
			}
			got[i] = err
		}()
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
	if succeeded != 1 {
		t.Errorf("%d succeeded, want 1", succeeded)
	}
	if err := netns.Remove(path); err != nil {
		t.Error(err)
	}
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
			if got := tree(t, dir); got != "" {
				t.Errorf("left: %s", got)
			}
		})
	}
	if err := netns.Remove(filepath.Join(t.TempDir(), "no", "directory")); err != nil {
		t.Errorf("without the directory: %v", err)
	}
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
		h, err := netns.Create(path)
		expect.NoError(t, err)
		var wg sync.WaitGroup
		for range 4 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				if err := netns.Remove(path); err != nil {
					t.Error(err)
				}
			}()
		}
		wg.Wait()
		h.Close()
	}
}

func TestRemoveRefusesOtherFiles(t *testing.T) {
	dir := t.TempDir()
	_, pinned := newNS(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	err := errors.Join(
		os.WriteFile(at("file"), []byte("mine"), 0o600),
		os.Mkdir(at("directory"), 0o755),
		os.Symlink(pinned, at("symlink")),
		unix.Mkfifo(at("fifo"), 0o600),
		os.WriteFile(at("uts"), nil, 0o600),
		unix.Mount("/proc/self/ns/uts", at("uts"), "", unix.MS_BIND, ""),
		os.Mkdir(at("tmpfs"), 0o755),
		unix.Mount("tmpfs", at("tmpfs"), "tmpfs", 0, ""),
	)
	expect.NoError(t, err)
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
	if after := tree(t, dir); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	if h, err := netns.Open(pinned); err != nil {
		t.Errorf("the symlink's target: %v", err)
	} else {
		h.Close()
	}
}

func TestUnpinLeavesTheFileForPin(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "ns")
	h, err := netns.Create(path)
	expect.NoError(t, err)
	defer h.Close()
	if err := unix.Mount(path, path, "", unix.MS_BIND, ""); err != nil { // two, one above the other
		t.Fatal(err)
	}
	for range 2 {
		expect.NoError(t, netns.Unpin(path))
		if _, err := netns.Open(path); !errors.Is(err, netns.ErrNotNetNS) {
			t.Errorf("after Unpin: %v, want %v", err, netns.ErrNotNetNS)
		}
		if got, want := tree(t, dir), "---------- ns"; got != want {
			t.Errorf("after Unpin:\n%s\nwant:\n%s", got, want)
		}
	}
	expect.NoError(t, netns.Pin(h, path))
	again, err := netns.Open(path)
	expect.NoError(t, err)
	defer again.Close()
	if again.ID() != h.ID() {
		t.Errorf("pinned again: %v, want %v", again.ID(), h.ID())
	}
	expect.NoError(t, netns.Remove(path))
	if err := netns.Unpin(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a file: %v, want %v", err, fs.ErrNotExist)
	}
}

func TestUnpinRefusesOtherFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	expect.NoError(t, os.WriteFile(file, []byte("mine"), 0o600))
	if err := netns.Unpin(file); !errors.Is(err, netns.ErrNotNetNS) {
		t.Errorf("got %v, want %v", err, netns.ErrNotNetNS)
	}
}
