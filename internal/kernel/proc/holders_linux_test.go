package proc

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// wantKilled waits for the process, which must end by SIGKILL.
func wantKilled(t *testing.T, what string, cmd *exec.Cmd) {
	t.Helper()
	var exit *exec.ExitError
	err := cmd.Wait()
	expect.That(t, errors.As(err, &exit) && exit.Error() == "signal: killed", "%s ended with %v", what, err)
}

func holders(t *testing.T, path string, offset int64) []*Holder {
	t.Helper()
	found := expect.Value(Holders(path, offset))(t)
	t.Cleanup(func() { CloseHolders(found) })
	return found
}

// TestHoldersAreThoseOfTheByte: a process without the open file, or with
// another byte locked, is not a holder.
func TestHoldersAreThoseOfTheByte(t *testing.T) {
	const mine, other = 42, 44
	path := filepath.Join(t.TempDir(), "locks")
	lock := open(t, path, 0, mine)
	plugins := []*exec.Cmd{start(t, lock), start(t, lock)}
	neighbours := map[string]*exec.Cmd{
		"another byte":      start(t, open(t, path, other)),
		"no byte":           start(t, open(t, path)),
		"another file":      start(t, open(t, filepath.Join(t.TempDir(), "locks"), mine)),
		"without the file":  start(t, nil),
		"another container": start(t, open(t, path, mine+1<<40)),
	}
	type holder struct {
		pid                   int
		opened, barrier, more bool
	}
	got := map[holder]bool{}
	all := holders(t, path, mine)
	for _, h := range all {
		got[holder{h.PID, h.Opened, h.Has(0), h.Has(other)}] = true
	}
	want := map[holder]bool{
		{os.Getpid(), true, true, false}:             true,
		{plugins[0].Process.Pid, false, true, false}: true,
		{plugins[1].Process.Pid, false, true, false}: true,
	}
	expect.Must(t, reflect.DeepEqual(got, want), "got %v, want %v", got, want)
	killed := 0
	for _, h := range all {
		ok, err := h.Kill()
		expect.That(t, err == nil, "%v", err)
		if ok {
			killed++
		}
	}
	if killed != len(plugins) { // except this process, which opened the file
		t.Errorf("killed %d", killed)
	}
	for _, cmd := range plugins {
		wantKilled(t, "a plugin", cmd)
	}
	for name, cmd := range neighbours {
		identity, err := identify(cmd.Process.Pid)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		wantAlive(t, identity, true)
	}
}

// TestAFormerHolderIsNotKilled: between the check and the kill the number
// may pass to another process, or the lock to another runtime.
func TestAFormerHolderIsNotKilled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "locks")
	lock := open(t, path, 42)
	plugin := start(t, lock)
	var found []*Holder
	for _, h := range holders(t, path, 42) {
		if h.PID == plugin.Process.Pid {
			found = append(found, h)
		}
	}
	expect.Must(t, len(found) == 1, "found %d times", len(found))
	unlock(t, lock, 42)
	ok, err := found[0].Kill()
	expect.That(t, !ok && err == nil, "without the lock: killed %v, %v", ok, err)
	lockByte(t, lock, 42)
	expect.NoError(t, plugin.Process.Kill())
	wantKilled(t, "the plugin", plugin)
	// Another process has that number, but the handle is not its.
	found[0].PID = start(t, lock).Process.Pid
	ok, err = found[0].Kill()
	expect.That(t, !ok && err == nil, "the number is another process's: killed %v, %v", ok, err)
}

func TestHoldersNeedTheLockFile(t *testing.T) {
	found, err := Holders(filepath.Join(t.TempDir(), "none"), 42)
	expect.That(t, found == nil && errors.Is(err, fs.ErrNotExist), "found %v, %v", found, err)
}

func TestParseFDInfo(t *testing.T) {
	type parsed struct {
		CloseOnExec bool
		Locks       []extent
	}
	for what, tt := range map[string]struct {
		info string
		want parsed
	}{
		"inherited": {"pos:\t0\nflags:\t0100002\nmnt_id:\t29\nino:\t5\nlock:\t1: OFDLCK  ADVISORY  WRITE -1 fe:00:5 42 42\n",
			parsed{false, []extent{{42, 42}}}},
		"opened, two, to the end": {"flags:\t02100002\nlock:\t1: OFDLCK  ADVISORY  READ -1 fe:00:5 0 1\nlock:\t2: OFDLCK  ADVISORY  WRITE -1 fe:00:5 9 EOF\n",
			parsed{true, []extent{{0, 1}, {9, 1<<63 - 1}}}},
		"not of a description": {"flags:\t0100002\nlock:\t1: POSIX  ADVISORY  WRITE 77 fe:00:5 42 42\nlock:\t2: FLOCK  ADVISORY  WRITE 77 fe:00:5 0 EOF\n",
			parsed{false, nil}},
		"not to be read": {"flags:\t9\nlock:\t1: OFDLCK  ADVISORY  WRITE -1 fe:00:5 x 42\nlock: OFDLCK\n", parsed{true, nil}},
		"nothing":        {"", parsed{true, nil}},
	} {
		var got parsed
		got.CloseOnExec, got.Locks = parseFDInfo(tt.info)
		expect.Same(t, what, got, tt.want)
	}
}
