package delqueue

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netns"
)

// Variables of the environment of a child that puts an entry and is killed before the
// step of that number.
const (
	killAt  = "DELQUEUE_KILL_AT"
	killDir = "DELQUEUE_DIR"
	// With this one the child prints the moment.
	printNow = "DELQUEUE_NOW"
)

func TestMain(m *testing.M) {
	if os.Getenv(printNow) != "" {
		now, err := Now()
		if err != nil {
			panic(err)
		}
		fmt.Print(now)
		return
	}
	if os.Getenv(killAt) == "" {
		os.Exit(m.Run())
	}
	left, err := strconv.Atoi(os.Getenv(killAt))
	if err != nil {
		panic(err)
	}
	q := Open(os.Getenv(killDir))
	q.before = func(string) error {
		if left--; left < 0 {
			return unix.Kill(os.Getpid(), unix.SIGKILL)
		}
		return nil
	}
	if err := q.Put(del("c1", "eth0", 20)); err != nil {
		panic(err)
	}
}

const thisBoot = "11111111-1111-1111-1111-111111111111"

func del(id, ifName string, nanos int64) *Entry {
	return &Entry{
		Env:     map[string]string{"CNI_COMMAND": "DEL", "CNI_CONTAINERID": id, "CNI_IFNAME": ifName},
		Config:  []byte(`{"cniVersion":"1.0.0","name":"net","type":"shim"}`),
		Network: "net",
		At:      Moment{thisBoot, nanos},
		NetNS:   netns.ID{Dev: 4, Ino: 4026532000},
	}
}

func put(t *testing.T, q *Queue, e *Entry) *Entry {
	t.Helper()
	expect.NoError(t, q.Put(e))
	return e
}

// listed returns the entries of the queue. Nothing in it may be damaged.
func listed(t *testing.T, q *Queue) []*Entry {
	t.Helper()
	return expect.Value(q.List())(t)
}

// files returns the names in a directory.
func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries := expect.Value(os.ReadDir(dir))(t)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestEntriesComeBackInOrder(t *testing.T) {
	now := expect.Value(Now())(t)
	q := Open(filepath.Join(t.TempDir(), "a", "dels"))
	expect.Same(t, "before the first", listed(t, q), nil)
	late, early, other := del("c1", "eth0", 7), del("c2", "eth0", 5), del("c1", "eth1", 6)
	last := del("c3", "eth0", 1)
	last.At.Boot = now.Boot // after a reboot
	for _, e := range []*Entry{last, late, early, other} {
		put(t, q, e)
	}
	all := listed(t, q)
	expect.Same(t, "entries", all, []*Entry{early, other, late, last})
	for _, e := range all {
		expect.NoError(t, q.Remove(e), q.Remove(e))
	}
	expect.Same(t, "at the end", listed(t, q), nil)
	info := expect.Value(os.Stat(q.dir))(t)
	expect.Same(t, "mode", info.Mode(), fs.ModeDir|0o700)
}

// TestALaterDELReplacesAnEarlierOne of the same attachment, and no other.
func TestALaterDELReplacesAnEarlierOne(t *testing.T) {
	q := Open(t.TempDir())
	expect.NoError(t, os.Chmod(q.dir, 0o700))
	put(t, q, del("c1", "eth0", 5))
	put(t, q, del("c1", "eth1", 5))
	second := put(t, q, del("c1", "eth0", 6))
	if all := listed(t, q); len(all) != 2 || !reflect.DeepEqual(all[1], second) {
		t.Errorf("got %+v", all)
	}
	// An earlier DEL, of a slow shim, ends fewer attachments than the queued one.
	put(t, q, del("c1", "eth0", 4))
	anotherNS := del("c1", "eth0", 9)
	anotherNS.NetNS.Ino++
	put(t, q, anotherNS)
	rebooted := del("c1", "eth0", 1)
	rebooted.At.Boot = "another"
	put(t, q, rebooted)
	expect.Same(t, "entries", len(listed(t, q)), 5)
}

func TestEnds(t *testing.T) {
	const boot, before, older = "now", "before", "older"
	ns, another := netns.ID{Dev: 4, Ino: 1}, netns.ID{Dev: 4, Ino: 2}
	for _, c := range []struct {
		name  string
		del   Moment
		ns    netns.ID
		added Moment
		now   netns.ID // of the attachment
		why   string   // empty: it ends the attachment
	}{
		{"attached before", Moment{boot, 5}, ns, Moment{boot, 4}, ns, ""},
		{"attached after", Moment{boot, 5}, ns, Moment{boot, 6}, ns, "attached after the DEL"},
		{"at once", Moment{boot, 5}, ns, Moment{boot, 5}, ns, "attached after the DEL"},
		{"another namespace at the path", Moment{boot, 5}, ns, Moment{boot, 4}, another, "another namespace"},
		{"the DEL had no namespace", Moment{boot, 5}, netns.ID{}, Moment{boot, 4}, another, ""},
		{"the namespace is gone", Moment{boot, 5}, ns, Moment{boot, 4}, netns.ID{}, ""},
		{"a record of an earlier version", Moment{boot, 5}, ns, Moment{}, ns, "not known when"},
		{"attached before the reboot, the DEL after it", Moment{boot, 5}, ns, Moment{before, 9}, another, ""},
		{"attached after the reboot", Moment{before, 9}, ns, Moment{boot, 5}, ns, "after a reboot"},
		{"both before the reboot", Moment{before, 9}, ns, Moment{before, 5}, netns.ID{}, ""},
		{"both before the reboot, attached after", Moment{before, 5}, ns, Moment{before, 9}, netns.ID{}, "attached after the DEL"},
		{"two reboots", Moment{before, 9}, ns, Moment{older, 5}, ns, "different boots"},
	} {
		ends, why := (&Entry{At: c.del, NetNS: c.ns}).Ends(c.added, c.now, boot)
		if ends != (c.why == "") || !strings.Contains(why, c.why) || ends != (why == "") {
			t.Errorf("%s: %v, %q, want %q", c.name, ends, why, c.why)
		}
	}
}

// TestKilledAtAnyStep: afterwards the entry is there or not, never a part of it, and an
// earlier one of the same attachment is not lost.
func TestKilledAtAnyStep(t *testing.T) {
	self := expect.Value(os.Executable())(t)
	for _, earlier := range []bool{false, true} {
		steps := 0
		for killed := true; killed; steps++ {
			q := Open(filepath.Join(t.TempDir(), "dels"))
			if earlier {
				put(t, q, del("c1", "eth0", 10))
			}
			child := exec.Command(self)
			child.Env = append(os.Environ(), killAt+"="+strconv.Itoa(steps), killDir+"="+q.dir)
			out, err := child.CombinedOutput()
			status, _ := child.ProcessState.Sys().(interface{ Signal() unix.Signal })
			killed = err != nil
			if killed && (status == nil || status.Signal() != unix.SIGKILL) {
				t.Fatalf("step %d: %v\n%s", steps, err, out)
			}
			all := listed(t, q)
			for _, e := range all {
				want := del("c1", "eth0", e.At.Nanos)
				want.file = e.file
				expect.Same(t, "entry", e, want)
			}
			newest := len(all) > 0 && all[len(all)-1].At.Nanos == 20
			if earlier && len(all) == 0 || !killed && !newest {
				t.Errorf("step %d: %d entries", steps, len(all))
			}
			if _, err := os.Stat(q.dir); err == nil && len(files(t, q.dir)) != len(all) {
				t.Errorf("step %d: left %v beside %d entries", steps, files(t, q.dir), len(all))
			}
		}
		t.Logf("killed before %d steps", steps-1)
		if steps < 5 {
			t.Errorf("only %d steps", steps)
		}
	}
}

// TestAFailureAtAnyStep: a Put that fails has added nothing and taken nothing away.
func TestAFailureAtAnyStep(t *testing.T) {
	full := errors.New("no space left")
	for n, failed := 0, true; failed; n++ {
		q := Open(filepath.Join(t.TempDir(), "dels"))
		earlier := put(t, q, del("c1", "eth0", 10))
		left := n
		q.before = func(string) error {
			if left--; left == -1 {
				return full
			}
			return nil
		}
		err := q.Put(del("c1", "eth0", 20))
		if failed = err != nil; !failed {
			continue
		}
		expect.Is(t, err, full)
		if all := listed(t, q); len(all) != 1 || !reflect.DeepEqual(all[0], earlier) || len(files(t, q.dir)) != 1 {
			t.Errorf("step %d: %+v, files %v", n, all, files(t, q.dir))
		}
	}
}

// TestAnyDamageIsFound: with one bit changed or the end cut off, a file is the same entry
// or it is set aside, once.
func TestAnyDamageIsFound(t *testing.T) {
	dir := t.TempDir()
	expect.NoError(t, os.Chmod(dir, 0o700))
	q := Open(dir)
	want := put(t, q, del("c1", "eth0", 5))
	path := filepath.Join(dir, want.file)
	whole := expect.Value(os.ReadFile(path))(t)
	newer := 0
	try := func(name string, data []byte) {
		t.Helper()
		expect.NoError(t, os.WriteFile(path, data, 0o600))
		all, err := q.List()
		switch {
		case err == nil && len(all) == 1 && reflect.DeepEqual(all[0], want):
		case errors.Is(err, ErrBad) && len(all) == 0:
			if again, err := q.List(); len(again) > 0 || err != nil {
				t.Errorf("%s: again %v, %v", name, again, err)
			}
			aside, err := os.ReadFile(strings.TrimSuffix(path, entryExt) + damagedExt)
			if err != nil || string(aside) != string(data) {
				t.Errorf("%s: set aside as %q, %v", name, aside, err)
			}
		case errors.Is(err, ErrNewer) && len(all) == 0:
			newer++
			expect.NoError(t, os.Remove(path)) // it was left where it is
		default:
			t.Errorf("%s: %v, %v", name, all, err)
		}
	}
	for n := range whole {
		try(fmt.Sprintf("cut at %d", n), whole[:n])
		for bit := range 8 {
			changed := append([]byte(nil), whole...)
			changed[n] ^= 1 << bit
			try(fmt.Sprintf("bit %d of byte %d", bit, n), changed)
		}
	}
	if newer == 0 || newer > 8 {
		t.Errorf("%d were taken for a newer version's, want those of the format's digit", newer)
	}
}

// TestAnEntryOfAnEarlierVersion has how often it was tried.
func TestAnEntryOfAnEarlierVersion(t *testing.T) {
	q := Open(filepath.Join(t.TempDir(), "dels"))
	e := put(t, q, del("c1", "eth0", 5))
	path := filepath.Join(q.dir, e.file)
	var f file
	expect.NoError(t, json.Unmarshal(expect.Value(os.ReadFile(path))(t), &f))
	f.DEL = append(f.DEL[:len(f.DEL)-1], `,"tries":9,"firstTry":{"boot":"b","nanos":1}}`...)
	f.Sum = sum(f.DEL)
	expect.NoError(t, os.WriteFile(path, expect.Value(json.Marshal(f))(t), 0o600))
	expect.Same(t, "entries", listed(t, q), []*Entry{e})
}

// TestAnEntryUnderAnotherName belongs to another attachment: someone has renamed it.
func TestAnEntryUnderAnotherName(t *testing.T) {
	q := Open(filepath.Join(t.TempDir(), "dels"))
	e := put(t, q, del("c1", "eth0", 5))
	expect.NoError(t, os.Rename(filepath.Join(q.dir, e.file), filepath.Join(q.dir, "x"+e.file)))
	all, err := q.List()
	expect.Empty(t, "listed", all)
	expect.Is(t, err, ErrBad)
}

// TestOtherFilesKeepNobodyWaiting: a FIFO, a directory, a file that never ends.
func TestOtherFilesKeepNobodyWaiting(t *testing.T) {
	q := Open(filepath.Join(t.TempDir(), "dels"))
	good := put(t, q, del("c1", "eth0", 5))
	in := func(name string) string { return filepath.Join(q.dir, name) }
	expect.NoError(t,
		unix.Mkfifo(in("a.del"), 0o600), unix.Mkfifo(in("a.new"), 0o600), os.Symlink("/dev/zero", in("b.del")),
		os.Mkdir(in("c"), 0o700), os.WriteFile(in("d.txt"), nil, 0o600), os.WriteFile(in("huge.del"), nil, 0o600),
		os.Truncate(in("huge.del"), 1<<40))
	all, err := q.List()
	expect.Same(t, "entries", all, []*Entry{good})
	expect.Is(t, err, ErrBad)
	for _, name := range []string{"a.del", "b.del", "huge.del"} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not in %v", name, err)
		}
	}
	put(t, q, del("c2", "eth0", 5))
	if all, err = q.List(); len(all) != 2 || errors.Is(err, ErrBad) {
		t.Errorf("then %v, %v", all, err)
	}
}

func TestLimits(t *testing.T) {
	q := Open(filepath.Join(t.TempDir(), "dels"))
	q.maxEntries = 3
	for n := range 3 {
		put(t, q, del(fmt.Sprint("c", n), "eth0", 5))
	}
	expect.Is(t, q.Put(del("c3", "eth0", 5)), ErrFull)
	put(t, q, del("c2", "eth0", 6)) // it takes the place of another
	expect.Is(t, q.Put(del("c3", "eth0", 7)), ErrFull)
	expect.NoError(t, q.Remove(listed(t, q)[0]))
	put(t, q, del("c3", "eth0", 8))

	q.maxEntries, q.maxBytes = MaxEntries, 4000
	long := del("c4", "eth0", 9)
	long.Config = make([]byte, 4000)
	expect.Is(t, q.Put(long), ErrFull)
	q.maxBytes = MaxBytes
	long.Config = make([]byte, maxEntry)
	expect.Fails(t, "an entry was put that List would not read", q.Put(long))
	if all := listed(t, q); len(all) != 3 {
		t.Errorf("got %v", all)
	}
}

func TestTheDirectoryMustBePrivate(t *testing.T) {
	for name, make := range map[string]func(dir string) error{
		"everybody's": func(dir string) error { return errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o702)) },
		"a group's":   func(dir string) error { return errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o720)) },
		"another user's": func(dir string) error {
			return errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, 1234, 1234))
		},
		"a file": func(dir string) error { return os.WriteFile(dir, nil, 0o600) },
		"a link": func(dir string) error { return os.Symlink(t.TempDir(), dir) },
	} {
		q := Open(filepath.Join(t.TempDir(), "dels"))
		expect.NoError(t, make(q.dir))
		expect.Is(t, q.Put(del("c1", "eth0", 5)), ErrShared)
		if all, err := q.List(); len(all) > 0 || !errors.Is(err, ErrShared) {
			t.Errorf("%s: %v, %v", name, all, err)
		}
	}
}

// TestAHalfWrittenFileIsDeleted once its writer must be dead, by whichever version.
func TestAHalfWrittenFileIsDeleted(t *testing.T) {
	q := Open(filepath.Join(t.TempDir(), "dels"))
	e := put(t, q, del("c1", "eth0", 5))
	names := []string{"." + e.file + ".17", "x.del.new"}
	for _, name := range names {
		expect.NoError(t, os.WriteFile(filepath.Join(q.dir, name), []byte(`{"format":1`), 0o600))
	}
	expect.Same(t, "entries", listed(t, q), []*Entry{e})
	expect.Same(t, "files while they are written", files(t, q.dir), []string{names[0], e.file, names[1]})
	for _, name := range names {
		expect.NoError(t, os.Chtimes(filepath.Join(q.dir, name), time.Time{}, time.Now().Add(-2*time.Minute)))
	}
	expect.Same(t, "entries", listed(t, q), []*Entry{e})
	expect.Same(t, "files", files(t, q.dir), []string{e.file})
}

func TestManyAtOnce(t *testing.T) {
	q := Open(filepath.Join(t.TempDir(), "dels"))
	var all sync.WaitGroup
	for n := range 50 {
		all.Go(func() {
			for nanos := range 4 {
				if err := q.Put(del(fmt.Sprint("c", n%25), "eth0", int64(nanos))); err != nil {
					t.Error(err)
				}
				if _, err := q.List(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	newest := map[string]int64{}
	for _, e := range listed(t, q) {
		newest[e.Env["CNI_CONTAINERID"]] = max(newest[e.Env["CNI_CONTAINERID"]], e.At.Nanos)
	}
	expect.Same(t, "containers", len(newest), 25)
	for id, nanos := range newest {
		if nanos != 3 {
			t.Errorf("the last DEL of %s is lost", id)
		}
	}
}

func TestMoments(t *testing.T) {
	first := expect.Value(Now())(t)
	second := expect.Value(Now())(t)
	if first.Boot != second.Boot || first.Nanos > second.Nanos || first.Nanos <= 0 {
		t.Errorf("%v, then %v", first, second)
	}
	for _, m := range []Moment{{}, first} {
		expect.Same(t, "parsed", expect.Value(ParseMoment(m.String()))(t), m)
	}
	for _, text := range []string{"x", "+1", "a+", "a+-1", "a+b", "a+1+2", "a+99999999999999999999"} {
		if m, err := ParseMoment(text); err == nil {
			t.Errorf("%q is %v", text, m)
		}
	}
}

// TestAnotherTimeNamespace has the same time since boot.
func TestAnotherTimeNamespace(t *testing.T) {
	self := expect.Value(os.Executable())(t)
	before := expect.Value(Now())(t)
	child := exec.Command("unshare", "--fork", "--time", "--boottime", "86400", self)
	child.Env = append(os.Environ(), printNow+"=1")
	child.Stderr = os.Stderr
	out := expect.Value(child.Output())(t)
	inside := expect.Value(ParseMoment(string(out)))(t)
	after := expect.Value(Now())(t)
	if inside.Boot != before.Boot || inside.Nanos < before.Nanos || inside.Nanos > after.Nanos {
		t.Errorf("%v is not between %v and %v", inside, before, after)
	}
}

func TestBoottimeOffset(t *testing.T) {
	for text, want := range map[string]int64{
		"monotonic           0         0\nboottime            0         0\n":          0,
		"monotonic          -5         1\nboottime        86400        17\n":          86400e9 + 17,
		"monotonic          -5         1\nboottime          -10 999999999\nnew 1 2\n": -10e9 + 999999999,
	} {
		expect.Same(t, text, expect.Value(boottimeOffset(text))(t), want)
	}
	for _, text := range []string{"", "boottime 1", "boottime x 0", "boottime 0 x"} {
		if offset, err := boottimeOffset(text); err == nil {
			t.Errorf("%q is %d", text, offset)
		}
	}
}
