package testhost

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/netns"
)

// Unrecord deletes a container's record and pin, as if go-cni had attached it.
func (h *Host) Unrecord(id string) {
	h.T.Helper()
	expect.NoError(h.T, os.Remove(h.RecordFile(id)+".json"))
	expect.NoError(h.T, netns.Remove(h.Pin(id)))
}

// SpoilBase replaces the first line of a container's record but not its log.
func (h *Host) SpoilBase(id, content string) {
	h.T.Helper()
	path := h.RecordFile(id) + ".json"
	data := expect.Value(os.ReadFile(path))(h.T)
	_, log, _ := bytes.Cut(data, []byte("\n"))
	expect.NoError(h.T, os.WriteFile(path, slices.Concat([]byte(content), []byte("\n"), log), 0o600))
}

// ForgetKinds removes the kinds of plugins from a record: early versions
// recorded none.
func (h *Host) ForgetKinds(id string) {
	h.T.Helper()
	store := h.Records()
	rec := expect.Value(store.Load(record.ID(id)))(h.T)
	for i := range rec.Attachments {
		rec.Attachments[i].Plugins = nil
	}
	expect.NoError(h.T, store.Begin(rec))
}

// Recorded renders the recorded attachments: "c1/eth0 attached".
func Recorded(t testing.TB, r *cni.Runtime) []string {
	t.Helper()
	all := expect.Value(r.Attachments())(t)
	lines := []string{}
	for _, a := range all {
		lines = append(lines, fmt.Sprintf("%s/%s %s", a.ContainerID, a.IfName, a.State))
	}
	return lines
}

// Records returns the host's records.
func (h *Host) Records() *record.Store {
	return record.Open(h.Path("state", "embedcni", "attachments"))
}

// ChangeRecord rewrites a container's record.
func (h *Host) ChangeRecord(id string, change func(*record.Record)) {
	h.T.Helper()
	rec := expect.Value(h.Records().Load(record.ID(id)))(h.T)
	change(rec)
	expect.NoError(h.T, h.Records().Begin(rec))
}

// Pinned reports whether a container's namespace is pinned.
func (h *Host) Pinned(id string) bool {
	h.T.Helper()
	_, err := os.Lstat(h.Pin(id))
	if err != nil && !os.IsNotExist(err) {
		h.T.Fatal(err)
	}
	return err == nil
}

// WithoutOverride makes the test's thread obey the modes of files, like a root
// without capabilities.
func (h *Host) WithoutOverride() (restore func()) {
	h.T.Helper()
	undo := expect.Value(without(unix.CAP_DAC_OVERRIDE, unix.CAP_DAC_READ_SEARCH))(h.T)
	return func() { expect.NoError(h.T, undo()) }
}

// without takes capabilities from the thread.
func without(capabilities ...int) (restore func() error, err error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	if err := unix.Capget(&header, &have[0]); err != nil {
		return nil, err
	}
	less := have
	for _, c := range capabilities {
		less[0].Effective &^= 1 << c
	}
	return func() error { return unix.Capset(&header, &have[0]) }, unix.Capset(&header, &less[0])
}

// Unread lists ways to make a record's file unreadable, by the kernel's error.
// Each returns a function that makes it readable again.
func Unread() map[syscall.Errno]func(h *Host, path string) func() {
	replaced := func(by func(path string) error) func(h *Host, path string) func() {
		return func(h *Host, path string) func() {
			expect.NoError(h.T, os.Rename(path, path+".aside"))
			expect.NoError(h.T, by(path))
			return func() {
				expect.NoError(h.T, os.Remove(path))
				expect.NoError(h.T, os.Rename(path+".aside", path))
			}
		}
	}
	return map[syscall.Errno]func(h *Host, path string) func(){
		syscall.EISDIR: replaced(func(path string) error { return os.Mkdir(path, 0o700) }),
		syscall.ELOOP:  replaced(func(path string) error { return os.Symlink(filepath.Base(path), path) }),
		// Nothing is mapped at address 0.
		syscall.EIO: replaced(func(path string) error { return os.Symlink("/proc/self/mem", path) }),
		syscall.EACCES: func(h *Host, path string) func() {
			expect.NoError(h.T, os.Chmod(path, 0))
			restore := h.WithoutOverride()
			return func() { restore(); expect.NoError(h.T, os.Chmod(path, 0o600)) }
		},
	}
}
