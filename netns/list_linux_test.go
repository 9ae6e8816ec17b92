package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
)

// pins makes namespaces in a directory, and removes everything in it after the test.
func pins(t *testing.T, names ...string) (dir string, ids map[string]ID) {
	t.Helper()
	dir, ids = t.TempDir(), map[string]ID{}
	for _, name := range names {
		h := expect.Value(Create(filepath.Join(dir, name)))(t)
		ids[name] = h.ID()
		expect.NoError(t, h.Close())
	}
	t.Cleanup(func() {
		all := expect.Value(List(dir))(t)
		for _, e := range all {
			expect.NoError(t, Remove(e.Path))
		}
	})
	return dir, ids
}

func TestListFindsPinsAndTheFilesThatTheyLeave(t *testing.T) {
	dir, ids := pins(t, "b", "a")
	at := func(name string) string { return filepath.Join(dir, name) }
	expect.NoError(t, os.WriteFile(at("empty"), nil, 0o444))
	expect.NoError(t, os.WriteFile(at("full"), []byte("x"), 0o444))
	expect.NoError(t, os.Symlink(at("a"), at("link")))
	expect.NoError(t, os.Mkdir(at("dir"), 0o700))
	expect.NoError(t, unix.Mkfifo(at("fifo"), 0o600))
	got := expect.Value(List(dir))(t)
	expect.Same(t, "list", got, []Entry{{at("a"), ids["a"]}, {at("b"), ids["b"]}, {Path: at("empty")}})
	got = expect.Value(List(at("missing")))(t)
	expect.Same(t, "a missing directory", len(got), 0)
	expect.Is(t, expect.Err(List(at("full"))), unix.ENOTDIR)
}

func TestRemoveIfTakesOnlyThatNamespace(t *testing.T) {
	dir, ids := pins(t, "ns", "other")
	path, other := filepath.Join(dir, "ns"), filepath.Join(dir, "other")
	removed := expect.Value(RemoveIf(path, ids["other"]))(t)
	expect.Same(t, "another's", removed, false)
	// Another on top hides it.
	expect.NoError(t, unix.Mount(other, path, "", unix.MS_BIND, ""))
	removed = expect.Value(RemoveIf(path, ids["ns"]))(t)
	expect.Same(t, "below another", removed, false)
	// On top of another, the other stays.
	removed = expect.Value(RemoveIf(path, ids["other"]))(t)
	expect.Same(t, "on top", removed, true)
	id := expect.Value(pinnedAt(path))(t)
	expect.Same(t, "below", id, ids["ns"])
	expect.NoError(t, unix.Mount(path, path, "", unix.MS_BIND, "")) // twice the same
	removed = expect.Value(RemoveIf(path, ids["ns"]))(t)
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
		removed = expect.Value(RemoveIf(path, ids["other"]))(t)
		expect.Same(t, what, removed, false)
		if what != "gone" {
			expect.NoError(t, os.Remove(path))
		}
	}
	id = expect.Value(pinnedAt(other))(t)
	expect.Same(t, "the other", id, ids["other"])
}

// removeEnv names the pin that a process of TestAPinOfAMorePrivilegedMountNamespaceIsBusy
// removes.
const removeEnv = "EMBEDCNI_TEST_REMOVE"

// TestAPinOfAMorePrivilegedMountNamespaceIsBusy: the kernel locks mounts that a user
// namespace inherits.
func TestAPinOfAMorePrivilegedMountNamespaceIsBusy(t *testing.T) {
	if path := os.Getenv(removeEnv); path != "" {
		id := expect.Value(pinnedAt(path))(t)
		expect.Is(t, Remove(path), ErrBusy)
		expect.Is(t, expect.Err(RemoveIf(path, id)), ErrBusy)
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
	id, err := pinnedAt(path)
	expect.NoError(t, err)
	expect.Same(t, "afterwards", id, ids["ns"])
}

// procOf returns a directory in the form of /proc, with these processes and this one
// alone: those of the machine may not be examined from a sandbox.
func procOf(t *testing.T, all ...int) string {
	t.Helper()
	dir := t.TempDir()
	for _, pid := range append(all, os.Getpid()) {
		expect.NoError(t, os.Symlink("/proc/"+strconv.Itoa(pid), filepath.Join(dir, strconv.Itoa(pid))))
	}
	return dir
}

// start runs sh in a namespace, and waits until it has done what script says.
func start(t *testing.T, path, script string, attr *syscall.SysProcAttr) (pid int) {
	t.Helper()
	cmd := exec.Command("sh", "-c", script+"; echo; exec sleep 600")
	cmd.SysProcAttr = attr
	out := expect.Value(cmd.StdoutPipe())(t)
	begin := cmd.Start
	if path != "" {
		begin = func() error {
			h, err := Open(path)
			if err != nil {
				return err
			}
			return errors.Join(h.Do(cmd.Start), h.Close())
		}
	}
	expect.NoError(t, begin())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it cannot have ended
		_ = cmd.Wait()
	})
	expect.Value(out.Read(make([]byte, 1)))(t)
	return cmd.Process.Pid
}

func TestSweepTakesOnlyWhatNobodyUses(t *testing.T) {
	dir, ids := pins(t, "x-inhabited", "x-open", "x-open-elsewhere", "x-mounted", "x-mounted-elsewhere",
		"x-wanted", "x-free", "x-copied", "y-free")
	at := func(name string) string { return filepath.Join(dir, name) }
	inhabitant := start(t, at("x-inhabited"), "true", nil)
	open := expect.Value(Open(at("x-open")))(t)
	t.Cleanup(func() { expect.NoError(t, open.Close()) })
	holder := start(t, "", "exec 7<"+at("x-open-elsewhere"), nil)
	expect.NoError(t, os.WriteFile(at("z"), nil, 0o444))
	expect.NoError(t, unix.Mount(at("x-mounted"), at("z"), "", unix.MS_BIND, ""))
	// This one has a copy of each mount, and one more at another path.
	mounter := start(t, "", fmt.Sprintf("mount --bind %s /dev/null && umount %s", at("x-mounted-elsewhere"), at("x-mounted-elsewhere")),
		&syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS})
	expect.NoError(t, os.WriteFile(at("x-empty"), nil, 0o444))
	expect.NoError(t, os.WriteFile(at("x-full"), []byte("x"), 0o444))
	proc := procOf(t, inhabitant, holder, mounter)

	wanted := errors.New("wanted")
	o := SweepOptions{Prefix: "x-", DryRun: true, Keep: func(e Entry) error {
		if e.Path == at("x-wanted") {
			return wanted
		}
		return nil
	}}
	removed := []Entry{{at("x-copied"), ids["x-copied"]}, {Path: at("x-empty")}, {at("x-free"), ids["x-free"]}}
	for _, o.DryRun = range []bool{true, false} {
		report := expect.Value(sweep(dir, proc, o))(t)
		expect.Same(t, "removed", report.Removed, removed)
		reasons := map[string]string{}
		for path, why := range report.Kept {
			if !errors.Is(why, ErrBusy) && why != wanted {
				t.Errorf("%s: %v", path, why)
			}
			reasons[filepath.Base(path)] = strings.TrimPrefix(why.Error(), ErrBusy.Error())
		}
		expect.Same(t, "kept", reasons, map[string]string{
			"x-inhabited":         fmt.Sprintf(": process %d is in it", inhabitant),
			"x-open":              fmt.Sprintf(": process %d has it open", os.Getpid()),
			"x-open-elsewhere":    fmt.Sprintf(": process %d has it open", holder),
			"x-mounted":           ": it is mounted at " + at("z") + " too",
			"x-mounted-elsewhere": ": it is mounted at /dev/null too",
			"x-wanted":            "wanted",
		})
	}
	left := expect.Value(List(dir))(t)
	var names []string
	for _, e := range left {
		names = append(names, filepath.Base(e.Path))
	}
	expect.Same(t, "left", names, slices.Concat([]string{"x-inhabited", "x-mounted", "x-mounted-elsewhere", "x-open", "x-open-elsewhere", "x-wanted"},
		[]string{"y-free", "z"}))
	if _, err := os.Stat(at("x-full")); err != nil {
		t.Error(err)
	}
}

// TestSweepTakesNothingWhileAProcessCannotBeExamined.
func TestSweepTakesNothingWhileAProcessCannotBeExamined(t *testing.T) {
	dir, ids := pins(t, "x")
	proc := procOf(t)
	secret := filepath.Join(proc, "7", "task", "7", "ns", "net") // no link: EINVAL stands for EACCES
	expect.NoError(t, os.MkdirAll(filepath.Dir(secret), 0o700))
	expect.NoError(t, os.WriteFile(secret, nil, 0o600))
	report := expect.Value(sweep(dir, proc, SweepOptions{Prefix: "x"}))(t)
	expect.Same(t, "removed", len(report.Removed), 0)
	expect.Is(t, report.Kept[filepath.Join(dir, "x")], ErrBusy)
	id := expect.Value(pinnedAt(filepath.Join(dir, "x")))(t)
	expect.Same(t, "the namespace", id, ids["x"])
}

// TestSweepThroughALink knows the mounts by their own path.
func TestSweepThroughALink(t *testing.T) {
	dir, ids := pins(t, "x")
	link := filepath.Join(t.TempDir(), "link")
	expect.NoError(t, os.Symlink(dir, link))
	report := expect.Value(sweep(link, procOf(t), SweepOptions{Prefix: "x"}))(t)
	expect.Same(t, "removed", report.Removed, []Entry{{filepath.Join(link, "x"), ids["x"]}})
}

func TestSweepOfNothing(t *testing.T) {
	expect.Fails(t, "an empty prefix was accepted", expect.Err(Sweep(t.TempDir(), SweepOptions{})))
	report := expect.Value(Sweep(filepath.Join(t.TempDir(), "missing"), SweepOptions{Prefix: "x"}))(t)
	expect.Same(t, "a missing directory", *report, SweepReport{})
}

func TestPinKeepsTheNamespaceWhenItsOwnPathIsGone(t *testing.T) {
	dir := t.TempDir()
	h := expect.Value(Create(filepath.Join(dir, "own")))(t)
	want := h.ID()
	kept := filepath.Join(dir, "deep", "down", "kept")
	for range 2 { // the second call finds it done
		expect.NoError(t, Pin(h, kept))
	}
	for _, err := range []error{Remove(filepath.Join(dir, "own")), h.Close()} {
		expect.NoError(t, err)
	}
	again := expect.Value(Open(kept))(t)
	if again.ID() != want {
		t.Errorf("namespace %s, want %s", again.ID(), want)
	}
	for _, err := range []error{again.Close(), Remove(kept)} {
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
	var handles []*Handle
	for _, name := range []string{"a", "b"} {
		h := expect.Value(Create(filepath.Join(dir, name)))(t)
		handles = append(handles, h)
	}
	expect.NoError(t, Pin(handles[0], path))
	expect.Is(t, Pin(handles[1], path), fs.ErrExist)
	for _, err := range []error{
		Remove(path), Remove(filepath.Join(dir, "a")), Remove(filepath.Join(dir, "b")),
		handles[0].Close(), handles[1].Close(),
	} {
		if err != nil {
			t.Error(err)
		}
	}
}
