package orphan

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// start runs a process that stays, with the environment and, if lock is not
// nil, with it open, as plugins have it.
func start(t *testing.T, env []string, lock *os.File) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	cmd.Env = env
	if lock != nil {
		cmd.ExtraFiles = []*os.File{lock}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may be dead already
		_ = cmd.Wait()
	})
	return cmd
}

func lockFile(t *testing.T, name string) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

func wantAlive(t *testing.T, identity string, want bool) {
	t.Helper()
	if alive, err := Alive(identity); alive != want || err != nil {
		t.Errorf("Alive(%q) = %v, %v, want %v", identity, alive, err, want)
	}
}

func TestAliveKnowsARecycledNumber(t *testing.T) {
	self, err := Self()
	if err != nil {
		t.Fatal(err)
	}
	wantAlive(t, self, true)
	wantAlive(t, self+"0", false) // the same number, started at another time

	cmd := start(t, nil, nil)
	child, err := identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	wantAlive(t, child, true)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Fatal("a killed process ended well")
	}
	wantAlive(t, child, false)
}

func TestAliveRefusesWhatIsNoIdentity(t *testing.T) {
	for _, identity := range []string{"", "1", "x:1", ":", "1.5:2"} {
		if alive, err := Alive(identity); alive || err == nil {
			t.Errorf("Alive(%q) = %v, %v", identity, alive, err)
		}
	}
}

func TestStartTimeIsFoundBehindAnyCommand(t *testing.T) {
	const rest = " S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 424242 20"
	for stat, want := range map[string]string{
		"7 (sleep)" + rest:         "424242",
		"7 (a) S 1 (b c)" + rest:   "424242",
		"7 (\n)" + rest:            "424242",
		"7 (sleep) S 1 2":          "too few fields",
		"":                         "too few fields",
		"7 (no end" + rest[:10]:    "too few fields",
		"7 (sleep)" + rest + " 21": "424242",
	} {
		got, err := startTime(stat)
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("startTime(%q) = %q, want %q", stat, got, want)
		}
	}
}

// Whoever lacks the open lock or the container's exact id is somebody else.
func TestKillFindsOnlyTheContainersPlugins(t *testing.T) {
	lock, other := lockFile(t, "locks"), lockFile(t, "locks")
	id := func(id string) []string { return []string{"PATH=/bin", "CNI_CONTAINERID=" + id, "CNI_COMMAND=ADD"} }
	plugins := []*exec.Cmd{start(t, id("c1"), lock), start(t, id("c1"), lock)}
	neighbours := map[string]*exec.Cmd{
		"longer id":         start(t, id("c11"), lock),
		"shorter id":        start(t, id("c"), lock),
		"another variable":  start(t, []string{"X_CNI_CONTAINERID=c1", "X=CNI_CONTAINERID=c1"}, lock),
		"no environment":    start(t, []string{}, lock),
		"without the lock":  start(t, id("c1"), nil),
		"another lock file": start(t, id("c1"), other),
	}
	killed, err := Kill(lock.Name(), "c1")
	if killed != len(plugins) || err != nil {
		t.Errorf("killed %d, %v, want %d", killed, err, len(plugins))
	}
	for _, cmd := range plugins {
		var exit *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &exit) || exit.Error() != "signal: killed" {
			t.Errorf("a plugin ended with %v", err)
		}
	}
	for name, cmd := range neighbours {
		identity, err := identify(cmd.Process.Pid)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		wantAlive(t, identity, true)
	}
	if killed, err := Kill(lock.Name(), "c1"); killed != 0 || err != nil {
		t.Errorf("again: killed %d, %v", killed, err)
	}
}

func TestKillNeedsTheLockFile(t *testing.T) {
	killed, err := Kill(filepath.Join(t.TempDir(), "none"), "c1")
	if killed != 0 || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("killed %d, %v", killed, err)
	}
}
