package netns_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netns"
)

// pins makes namespaces in a directory, and removes everything in it after the test.
func pins(t *testing.T, names ...string) (dir string, ids map[string]netns.ID) {
	t.Helper()
	dir, ids = t.TempDir(), map[string]netns.ID{}
	for _, name := range names {
		h := expect.Value(netns.Create(filepath.Join(dir, name)))(t)
		ids[name] = h.ID()
		expect.NoError(t, h.Close())
	}
	t.Cleanup(func() {
		all := expect.Value(netns.List(dir))(t)
		for _, e := range all {
			expect.NoError(t, netns.Remove(e.Path))
		}
	})
	return dir, ids
}

// leadsTo returns the namespace at a path.
func leadsTo(t *testing.T, path string) netns.ID {
	t.Helper()
	h := expect.Value(netns.Open(path))(t)
	expect.NoError(t, h.Close())
	return h.ID()
}

func TestListFindsPinsAndTheFilesThatTheyLeave(t *testing.T) {
	dir, ids := pins(t, "b", "a")
	at := func(name string) string { return filepath.Join(dir, name) }
	expect.NoError(t, os.WriteFile(at("empty"), nil, 0o444))
	expect.NoError(t, os.WriteFile(at("full"), []byte("x"), 0o444))
	expect.NoError(t, os.Symlink(at("a"), at("link")))
	expect.NoError(t, os.Mkdir(at("dir"), 0o700))
	expect.NoError(t, unix.Mkfifo(at("fifo"), 0o600))
	got := expect.Value(netns.List(dir))(t)
	expect.Same(t, "list", got, []netns.Entry{{at("a"), ids["a"]}, {at("b"), ids["b"]}, {Path: at("empty")}})
	got = expect.Value(netns.List(at("missing")))(t)
	expect.Same(t, "a missing directory", len(got), 0)
	expect.Is(t, expect.Err(netns.List(at("full"))), unix.ENOTDIR)
}

func TestRemoveIfTakesOnlyThatNamespace(t *testing.T) {
	dir, ids := pins(t, "ns", "other")
	path, other := filepath.Join(dir, "ns"), filepath.Join(dir, "other")
	removed := expect.Value(netns.RemoveIf(path, ids["other"]))(t)
	expect.Same(t, "another's", removed, false)
	// Another on top hides it.
	expect.NoError(t, unix.Mount(other, path, "", unix.MS_BIND, ""))
	removed = expect.Value(netns.RemoveIf(path, ids["ns"]))(t)
	expect.Same(t, "below another", removed, false)
	// On top of another, the other stays.
	removed = expect.Value(netns.RemoveIf(path, ids["other"]))(t)
	expect.Same(t, "on top", removed, true)
	id := leadsTo(t, path)
	expect.Same(t, "below", id, ids["ns"])
	expect.NoError(t, unix.Mount(path, path, "", unix.MS_BIND, "")) // twice the same
	removed = expect.Value(netns.RemoveIf(path, ids["ns"]))(t)
	expect.Same(t, "alone", removed, true)
	for _, what := range []string{"gone", "an empty file", "a directory", "a link"} {
		switch what {
		case "an empty file":
			expect.NoError(t, os.WriteFile(path, nil, 0o444))
		case "a directory":
			expect.NoError(t, os.Mkdir(path, 0o700))
		case "a link":
			expect.NoError(t, os.Symlink(other, path))
		}
		removed = expect.Value(netns.RemoveIf(path, ids["other"]))(t)
		expect.Same(t, what, removed, false)
		if what != "gone" {
			expect.NoError(t, os.Remove(path))
		}
	}
	id = leadsTo(t, other)
	expect.Same(t, "the other", id, ids["other"])
}

// removeEnv names the pin that a process of TestAPinOfAMorePrivilegedMountNamespaceIsBusy
// removes.
const removeEnv = "EMBEDCNI_TEST_REMOVE"

// TestAPinOfAMorePrivilegedMountNamespaceIsBusy: the kernel locks mounts that a user
// namespace inherits.
func TestAPinOfAMorePrivilegedMountNamespaceIsBusy(t *testing.T) {
	if path := os.Getenv(removeEnv); path != "" {
		id := leadsTo(t, path)
		expect.Is(t, netns.Remove(path), netns.ErrBusy)
		expect.Is(t, expect.Err(netns.RemoveIf(path, id)), netns.ErrBusy)
		return
	}
	dir, ids := pins(t, "ns")
	path := filepath.Join(dir, "ns")
	cmd := exec.Command("/proc/self/exe", "-test.run", "^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), removeEnv+"="+path)
	root := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS, UidMappings: root, GidMappings: root}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("%v: %s", err, out)
	}
	expect.Same(t, "afterwards", leadsTo(t, path), ids["ns"])
}

func TestPinKeepsTheNamespaceWhenItsOwnPathIsGone(t *testing.T) {
	dir := t.TempDir()
	h := expect.Value(netns.Create(filepath.Join(dir, "own")))(t)
	want := h.ID()
	kept := filepath.Join(dir, "deep", "down", "kept")
	for range 2 { // the second call finds it done
		expect.NoError(t, netns.Pin(h, kept))
	}
	for _, err := range []error{netns.Remove(filepath.Join(dir, "own")), h.Close()} {
		expect.NoError(t, err)
	}
	again := expect.Value(netns.Open(kept))(t)
	if again.ID() != want {
		t.Errorf("namespace %s, want %s", again.ID(), want)
	}
	for _, err := range []error{again.Close(), netns.Remove(kept)} {
		if err != nil {
			t.Error(err)
		}
	}
	expect.Is(t, expect.Err(os.Lstat(kept)), fs.ErrNotExist)
}

func TestPinUsesAnEmptyFileAndRefusesAnotherNamespace(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "kept")
	expect.NoError(t, os.WriteFile(path, nil, 0o600))
	var handles []*netns.Handle
	for _, name := range []string{"a", "b"} {
		h := expect.Value(netns.Create(filepath.Join(dir, name)))(t)
		handles = append(handles, h)
	}
	expect.NoError(t, netns.Pin(handles[0], path))
	expect.Is(t, netns.Pin(handles[1], path), fs.ErrExist)
	for _, err := range []error{
		netns.Remove(path), netns.Remove(filepath.Join(dir, "a")), netns.Remove(filepath.Join(dir, "b")),
		handles[0].Close(), handles[1].Close(),
	} {
		if err != nil {
			t.Error(err)
		}
	}
}
