package record

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/plainfile"
	"github.com/embedcni/cni/internal/sandbox"
)

// folder is a directory whose files are remembered, and counts those that are read.
type folder struct {
	t     testing.TB
	dir   string
	files *Files[string]
	reads atomic.Int64
	fails atomic.Bool // reading is not possible now
}

func newFolder(t testing.TB, open func(string) (*Watch, error)) *folder {
	dir := filepath.Join(t.TempDir(), "of")
	expect.NoError(t, os.Mkdir(dir, 0o700))
	return &folder{t: t, dir: dir, files: NewFiles[string](dir, ".x", open)}
}

// watched is a folder with a dozen files, "0" to "11" with "v0" to "v11" in them.
func watched(t testing.TB) *folder {
	t.Helper()
	d := newFolder(t, WatchFiles)
	for i := range 12 {
		d.write(fmt.Sprint(i), fmt.Sprint("v", i))
	}
	d.age()
	d.want("the first time", "v5", "5")
	expect.Same(t, "a process that asks once has a watch", d.files.watch != nil, false)
	d.want("again", "v5", "5")
	expect.Must(t, d.files.watch != nil, "no watch")
	d.reads.Store(0)
	return d
}

func (d *folder) path(name string) string { return filepath.Join(d.dir, name+".x") }

func (d *folder) write(name, content string) {
	d.t.Helper()
	expect.NoError(d.t, os.WriteFile(d.path(name), []byte(content), 0o600))
}

// age makes all files so old that their times say whether they have changed.
func (d *folder) age() {
	d.t.Helper()
	all := expect.Value(filepath.Glob(d.path("*")))(d.t)
	old := time.Now().Add(-time.Hour)
	for _, path := range all {
		expect.NoError(d.t, os.Chtimes(path, old, old))
	}
}

func (d *folder) read(name string) (string, bool) {
	d.reads.Add(1)
	if d.fails.Load() {
		return "", false
	}
	data, err := os.ReadFile(d.path(name))
	expect.That(d.t, err == nil || errors.Is(err, os.ErrNotExist), "%v", err)
	return string(data), true
}

// having returns the names of the files with a content.
func (d *folder) having(content string) (names []string, err error) {
	err = d.files.Each(d.read, func(name, value string) {
		if value == content {
			names = append(names, name)
		}
	})
	slices.Sort(names)
	return names, err
}

func (d *folder) want(what, content string, names ...string) {
	d.t.Helper()
	expect.Same(d.t, what, expect.Value(d.having(content))(d.t), names)
}

func (d *folder) wantReads(what string, want int64) {
	d.t.Helper()
	expect.Same(d.t, "reads: "+what, d.reads.Swap(0), want)
}

// TestListedFilesAreReadOnce, unless they have changed, or their time cannot say so.
func TestListedFilesAreReadOnce(t *testing.T) {
	d := newFolder(t, nil)
	d.want("nothing", "a")
	d.write("1", "a")
	d.write("2", "b")
	expect.NoError(t, os.WriteFile(filepath.Join(d.dir, "1.y"), []byte("a"), 0o600)) // is not asked for
	d.want("young", "a", "1")
	d.wantReads("at first", 2)
	d.want("young", "a", "1")
	d.wantReads("while they are young", 2)
	d.age()
	d.want("old", "a", "1")
	d.wantReads("while they become old", 2)
	d.want("old", "b", "2")
	d.wantReads("then", 0)
	d.write("2", "a")
	d.want("changed", "a", "1", "2")
	d.wantReads("what has changed", 1)
	expect.NoError(t, os.Remove(d.path("1")))
	d.want("removed", "a", "2")
	expect.NoError(t, os.RemoveAll(d.dir))
	d.want("without a directory", "a")
}

// TestAWatchTellsAtOnce what others do, without a list.
func TestAWatchTellsAtOnce(t *testing.T) {
	d := watched(t)
	lists := d.files.lists
	d.want("nobody's", "new")
	d.wantReads("nothing", 0)
	d.write("new", "new")
	d.want("new", "new", "new")
	d.write("7", "new") // rewritten in place
	d.want("rewritten", "new", "7", "new")
	d.want("its former content", "v7")
	d.wantReads("what has changed", 2)
	expect.NoError(t, os.Rename(d.path("new"), d.path("newer")))
	d.want("renamed", "new", "7", "newer")
	expect.NoError(t, os.Remove(d.path("newer")))
	d.want("gone", "new", "7")
	expect.Same(t, "lists since", d.files.lists-lists, 0)
}

// TestAFileThatCannotBeReadNow is read again by the next call.
func TestAFileThatCannotBeReadNow(t *testing.T) {
	d := watched(t)
	d.fails.Store(true)
	d.write("3", "new")
	d.want("unread", "new")
	d.fails.Store(false)
	d.want("then", "new", "3")
}

// TestADirectoryThatIsReplaced, or covered by a mount, of which nobody is told.
func TestADirectoryThatIsReplaced(t *testing.T) {
	for what, replace := range map[string]func(dir string) error{
		"renamed": func(dir string) error { return errors.Join(os.Rename(dir, dir+".old"), os.Mkdir(dir, 0o700)) },
		"removed": func(dir string) error { return errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700)) },
		"mounted": func(dir string) error { return unix.Mount("tmpfs", dir, "tmpfs", 0, "") },
	} {
		d := watched(t)
		expect.NoError(t, replace(d.dir))
		d.write("new", "new")
		d.want(what+": in the new one", "new", "new")
		d.want(what+": in the former one", "v5")
		if what == "mounted" {
			expect.NoError(t, unix.Unmount(d.dir, unix.MNT_DETACH))
			d.want("no longer mounted", "v5", "5")
		}
	}
}

// TestAWatchThatCannotBeHad: the user has no inotify instance left. The files are listed.
func TestAWatchThatCannotBeHad(t *testing.T) {
	d := newFolder(t, func(string) (*Watch, error) { return nil, unix.EMFILE })
	for i := range 12 {
		d.write(fmt.Sprint(i), "v")
	}
	for range 3 {
		d.want("nobody's", "new")
	}
	d.write("new", "new")
	d.want("new", "new", "new")
}

// TestAWatchThatHasMissedChanges: the kernel queues so many and no more.
func TestAWatchThatHasMissedChanges(t *testing.T) {
	d := watched(t)
	text := expect.Value(os.ReadFile("/proc/sys/fs/inotify/max_queued_events"))(t)
	most := expect.Value(strconv.Atoi(strings.TrimSpace(string(text))))(t)
	d.write("a", "")
	a, b := d.path("a"), d.path("b")
	for range most/2 + 10 { // two events each
		expect.NoError(t, os.Rename(a, b))
		a, b = b, a
	}
	d.write("new", "new") // is not in the queue
	d.want("missed", "new", "new")
	d.write("newer", "new")
	d.want("by the next watch", "new", "new", "newer")
}

// TestADirectoryThatCannotBeReadIsAnError, rather than one without files.
func TestADirectoryThatCannotBeReadIsAnError(t *testing.T) {
	d := newFolder(t, WatchFiles)
	expect.NoError(t, os.Remove(d.dir))
	expect.NoError(t, os.WriteFile(d.dir, nil, 0o600))
	expect.Fails(t, "found one", expect.Err(d.having("a")))
}

// TestAFileThatIsThereIsNeverMissing, while others are made and removed, and it is
// replaced itself.
func TestAFileThatIsThereIsNeverMissing(t *testing.T) {
	for name, open := range map[string]func(string) (*Watch, error){"listed": nil, "watched": WatchFiles} {
		t.Run(name, func(t *testing.T) {
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			random := rand.New(rand.NewPCG(seed, 0))
			d := newFolder(t, open)
			const stable = 20
			replace := func(name, content string) error {
				tmp := d.path(name) + ".new"
				return errors.Join(os.WriteFile(tmp, []byte(content), 0o600), os.Rename(tmp, d.path(name)))
			}
			for i := range stable {
				expect.NoError(t, replace(fmt.Sprint("stays", i), fmt.Sprint(i)))
			}
			stop := make(chan struct{})
			var writer, callers sync.WaitGroup
			writer.Go(func() {
				for n := 0; ; n++ {
					select {
					case <-stop:
						return
					default:
					}
					passing := fmt.Sprint("passes", n%7)
					err := errors.Join(replace(passing, "x"), replace(fmt.Sprint("stays", n%stable), fmt.Sprint(n%stable)))
					if n%3 == 0 {
						err = errors.Join(err, os.Remove(d.path(passing)))
					}
					expect.That(t, err == nil, "%v", err)
				}
			})
			for range 3 {
				wanted := make([]int, 60)
				for n := range wanted {
					wanted[n] = random.IntN(stable)
				}
				callers.Go(func() {
					for _, i := range wanted {
						got, err := d.having(fmt.Sprint(i))
						expect.That(t, err == nil && slices.Equal(got, []string{fmt.Sprint("stays", i)}), "%d: %q, %v", i, got, err)
					}
				})
			}
			callers.Wait()
			close(stop)
			writer.Wait()
		})
	}
}

// TestFault_F50_ARecordThatIsNoFileBlocksNobody: reading or writing a FIFO in
// its place ends at once.
func TestFault_F50_ARecordThatIsNoFileBlocksNobody(t *testing.T) {
	s := Open(t.TempDir())
	check(t, syscall.Mkfifo(s.path("c1"), 0o600))
	ended := make(chan []error, 1)
	go func() {
		_, load := s.Load("c1")
		ended <- []error{load, s.Append(sample("c1"), Entry{})}
	}()
	errs := expect.Await(t, "the calls, which a FIFO holds up", ended)
	expect.Is(t, errs[0], plainfile.ErrNotRegular)
	expect.Fails(t, "writing succeeded", errs[1])
}

// TestFault_F39_NoFileThatWasThereIsLaterThanNow: otherwise an
// administrator's reservation from the tick before would be mistaken for a
// killed plugin's. Since Linux 6.13 a file's time can be ahead of the last
// tick, if any program on the machine reads the times of changing files.
func TestFault_F39_NoFileThatWasThereIsLaterThanTheLedgersNow(t *testing.T) {
	dir := t.TempDir()
	s := Open(filepath.Join(dir, "records"))
	changing, there, next := filepath.Join(dir, "changing"), filepath.Join(dir, "there"), filepath.Join(dir, "next")
	made := func(path string) time.Time {
		t.Helper()
		expect.NoError(t, os.WriteFile(path, []byte("x"), 0o600))
		return expect.Value(os.Stat(path))(t).ModTime()
	}
	for range 200 {
		made(changing)
		made(changing)
		before := made(there)
		now := s.Now()
		after := made(next)
		expect.Must(t, !before.After(now) && !after.Before(now),
			"a file was made at %v, then it was %v, and another was made at %v", before, now, after)
		expect.NoError(t, os.Remove(there))
		expect.NoError(t, os.Remove(next))
	}
}

// TestMain runs the tests in their own namespaces: one mounts a file system.
func TestMain(m *testing.M) { os.Exit(sandbox.Main(m)) }
