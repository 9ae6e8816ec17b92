package netns_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netns"
)

// newNS returns a namespace that lives until the test ends, and its path.
func newNS(t *testing.T) (*netns.Handle, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ns")
	h := expect.Value(netns.Create(path))(t)
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		expect.NoError(t, netns.Remove(path))
	})
	return h, path
}

func currentID(t *testing.T) netns.ID {
	t.Helper()
	return expect.Value(netns.CurrentID())(t)
}

func TestIdentityIsTheSameByEveryWay(t *testing.T) {
	h, path := newNS(t)
	link := filepath.Join(t.TempDir(), "link")
	expect.NoError(t, os.Symlink(path, link))
	ids := map[string]netns.ID{"Create": h.ID()}
	for name, p := range map[string]string{
		"Open by path":       path,
		"Open by symlink":    link,
		"Open by descriptor": fmt.Sprintf("/proc/self/fd/%d", h.File().Fd()),
	} {
		o := expect.Value(netns.Open(p))(t)
		ids[name] = o.ID()
		expect.NoError(t, o.Close())
	}
	expect.NoError(t, h.Do(func() error {
		id, err := netns.CurrentID()
		ids["CurrentID inside"] = id
		return err
	}))
	for name, id := range ids {
		if id != h.ID() {
			t.Errorf("%s: got %s, want %s", name, id, h.ID())
		}
	}
}

func TestCurrentAndProcessAgreeOutside(t *testing.T) {
	h := expect.Value(netns.Current())(t)
	defer h.Close()
	process := expect.Value(netns.ProcessID())(t)
	if got := [2]netns.ID{h.ID(), currentID(t)}; got != [2]netns.ID{process, process} {
		t.Errorf("Current and CurrentID: got %v, want %s", got, process)
	}
	if fresh, _ := newNS(t); fresh.ID() == process {
		t.Errorf("a new namespace has the identity of the process's")
	}
}

func TestOpenRejectsOtherFiles(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	expect.NoError(t, os.WriteFile(file, nil, 0o600))
	// A FIFO without a writer would block open(2) for ever.
	fifo := filepath.Join(dir, "fifo")
	expect.NoError(t, unix.Mkfifo(fifo, 0o600))
	socket := filepath.Join(dir, "socket")
	listener := expect.Value(net.Listen("unix", socket))(t)
	defer listener.Close()
	loop := filepath.Join(dir, "loop")
	expect.NoError(t, os.Symlink("loop", loop))
	tests := map[string]struct {
		path string
		want error
	}{
		"regular file":      {file, netns.ErrNotNetNS},
		"directory":         {dir, netns.ErrNotNetNS},
		"fifo":              {fifo, netns.ErrNotNetNS},
		"socket":            {socket, netns.ErrNotNetNS},
		"device":            {"/dev/null", netns.ErrNotNetNS},
		"uts namespace":     {"/proc/self/ns/uts", netns.ErrNotNetNS},
		"mount namespace":   {"/proc/self/ns/mnt", netns.ErrNotNetNS},
		"missing":           {filepath.Join(dir, "none"), fs.ErrNotExist},
		"missing directory": {filepath.Join(dir, "none", "ns"), fs.ErrNotExist},
		"empty path":        {"", fs.ErrNotExist},
		"file as directory": {filepath.Join(file, "ns"), unix.ENOTDIR},
		"endless symlink":   {loop, unix.ELOOP},
		"zero byte":         {"ns\x00", unix.EINVAL},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			h, err := netns.Open(tt.path)
			if err == nil {
				h.Close()
			}
			if !errors.Is(err, tt.want) {
				t.Fatalf("got %v, want %v", err, tt.want)
			}
			if want := fmt.Sprintf("open network namespace %q: ", tt.path); !strings.HasPrefix(err.Error(), want) {
				t.Errorf("got %q, want it to begin with %q", err, want)
			}
		})
	}
}

func TestCloseIsIdempotent(t *testing.T) {
	h, path := newNS(t)
	o := expect.Value(netns.Open(path))(t)
	for range 2 {
		expect.NoError(t, o.Close())
	}
	expect.Same(t, "after Close", o.ID(), h.ID())
	expect.Is(t, o.Do(func() error { return nil }), os.ErrClosed)
}

func TestHandleKeepsNamespaceWithoutPin(t *testing.T) {
	h, path := newNS(t)
	expect.NoError(t, netns.Remove(path))
	var got netns.ID
	err := h.Do(func() (err error) {
		got, err = netns.CurrentID()
		return err
	})
	if err != nil || got != h.ID() {
		t.Errorf("got %s, %v, want %s", got, err, h.ID())
	}
}

func TestNoDescriptorIsLeaked(t *testing.T) {
	dir := t.TempDir()
	round := func() {
		path := filepath.Join(dir, "ns")
		h := expect.Value(netns.Create(path))(t)
		_, _ = netns.Create(path)
		_, _ = netns.Open(dir)
		_, _ = netns.Open("/proc/self/ns/uts")
		if err := h.Do(func() error { return errors.New("any") }); err == nil {
			t.Fatal("no error")
		}
		func() {
			defer func() { _ = recover() }()
			_ = h.Do(func() error { panic("any") })
		}()
		expect.NoError(t, errors.Join(h.Close(), netns.Remove(path)))
	}
	round() // files that the runtime opens once are open now
	before := openFiles(t)
	for range 20 {
		round()
	}
	expect.Same(t, "open files", openFiles(t), before)
}

func openFiles(t *testing.T) int {
	t.Helper()
	return len(expect.Value(os.ReadDir("/proc/self/fd"))(t))
}
