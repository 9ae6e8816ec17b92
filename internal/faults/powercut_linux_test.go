package faults_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/store/record"
)

// powerCut is M12: the directories as a power cut leaves them, at each step of
// a Setup and a Remove. It assumes that metadata reaches the disk in order, as
// with journals. Unsynced data is lost entirely or in part.
//
// The container's ID was used before, as a restarted container's is. Its second life
// gets another address than the first.
//
// The namespace exists before Setup, or Setup makes it: at a path of the caller's, on a disk,
// or at one of its own choice.
func (b *board) powerCut(t *testing.T) {
	for i, v := range []struct {
		what   string
		record func(h *host, home func(*host) (string, []cni.NamespaceOpts)) []string
		home   func(h *host) (path string, opts []cni.NamespaceOpts)
		cuts   int // at each step; 0: all
		steps  int
	}{
		{"power cut after each step", (*host).record, func(h *host) (string, []cni.NamespaceOpts) { return h.container("m12"), nil }, *cutsPerStep, 19},
		{"the same, in a namespace that ADD makes", (*host).record, func(h *host) (string, []cni.NamespaceOpts) {
			return h.path("homes", "m12"), []cni.NamespaceOpts{cni.WithNewNetNS()}
		}, *cutsPerStep / 2, 19},
		{"the same, at a path that ADD chooses", (*host).record, func(h *host) (string, []cni.NamespaceOpts) {
			return "", []cni.NamespaceOpts{cni.WithNewNetNS()}
		}, *cutsPerStep / 2, 19},
		{"the same, of lo alone", (*host).recordLo, func(h *host) (string, []cni.NamespaceOpts) { return h.container("m12"), nil }, 3 * *cutsPerStep, 5},
		{"the same, of plugins that write no file", (*host).recordKernelOnly, func(h *host) (string, []cni.NamespaceOpts) { return h.container("m12"), nil }, 3 * *cutsPerStep, 5},
		{"the same, over flannel", (*host).recordFlannel, func(h *host) (string, []cni.NamespaceOpts) { return h.container("m12"), nil }, 2 * *cutsPerStep, 5},
	} {
		t.Run(v.what, func(t *testing.T) {
			h := newHost(t)
			recovered, tried, steps := h.cutAll(t, v.record(h, v.home), anyCut, v.cuts, b.random(12<<32+uint64(i)))
			b.figure(t, "M12", v.what, fmt.Sprintf("%d of %d states of %d steps recovered", recovered, tried, steps),
				"every one", recovered == tried && steps == v.steps)
		})
	}
}

// TestFault_F64_APowerCutInAnADDOfAnIDThatWasUsedBefore: the ADD's files are there, but not yet
// their content, nor all that was noted about the container's second life. The address
// is released.
func TestFault_F64_APowerCutInAnADDOfAnIDThatWasUsedBefore(t *testing.T) {
	h := newHost(t)
	steps := h.record(func(h *host) (string, []cni.NamespaceOpts) { return h.container("m12"), nil })
	emptied := func(c cut) bool { return strings.HasPrefix(c.name, "the address is nobody's") }
	seed := uint64(time.Now().UnixNano())
	recovered, tried, _ := h.cutAll(t, steps[:10], emptied, 0, rand.New(rand.NewPCG(seed, 64)))
	t.Logf("seed %d: %d of %d disk images with an empty reservation recovered", seed, recovered, tried)
	expect.Same(t, "a step has a reservation", tried > 0, true)
}

// TestFault_F64_APowerCutUndoesADeletion of an ID that was used before: a release is not on
// the disk while there is a record, and a record is there again after the first life.
func TestFault_F64_APowerCutUndoesADeletion(t *testing.T) {
	h := newHost(t)
	steps := h.record(func(h *host) (string, []cni.NamespaceOpts) { return h.container("m12"), nil })
	found := map[string]int{"the release is undone": 0, "the record of the first life": 0}
	undone := func(c cut) bool {
		for what := range found {
			if strings.HasPrefix(c.name, what) {
				found[what]++
				return true
			}
		}
		return false
	}
	recovered, tried, _ := h.cutAll(t, steps, undone, 0, rand.New(rand.NewPCG(64, 64)))
	t.Logf("%d of %d disk images recovered: %v", recovered, tried, found)
	for what, n := range found {
		expect.That(t, n >= 2, "%s: %d steps have such a cut", what, n)
	}
}

func anyCut(cut) bool { return true }

// cutAll tries the wanted cuts at each step, at most that many, and counts those after
// which nothing is left.
func (h *host) cutAll(t *testing.T, steps []string, wanted func(cut) bool, most int, random *rand.Rand) (recovered, tried, all int) {
	bootID := fakeBoot(t)
	h.enter("rebooted") // no interface, no rule
	set := h.settings(1)
	set.HostNetNS = h.netns("rebooted")
	before := h.audit()
	mounts := mountsOf(t)
	for _, step := range steps {
		cuts := h.cuts(step, random)
		random.Shuffle(len(cuts)-1, func(i, j int) { cuts[i+1], cuts[j+1] = cuts[j+1], cuts[i+1] })
		cuts = slices.DeleteFunc(cuts, func(c cut) bool { return !wanted(c) })
		if most > 0 {
			cuts = cuts[:min(most, len(cuts))]
		}
		for _, c := range cuts {
			tried++
			h.restore(step)
			expect.NoError(t, c.do())
			expect.NoError(t, os.WriteFile(bootID, fmt.Appendf(nil, "boot-%d\n", tried), 0o600))
			err := recoverAll(context.Background(), h.runtime(set), false)
			left := leftOf(before, h.audit())
			for _, f := range expect.Value(os.ReadDir(h.path("homes")))(t) {
				left = append(left, "file of a namespace "+f.Name())
			}
			if now := mountsOf(t); now != mounts {
				left = append(left, fmt.Sprintf("%d mounts of namespaces instead of %d", now, mounts))
			}
			if err != nil || len(left) > 0 {
				t.Errorf("%s, %s: %v; left:\n%s", filepath.Base(step), c.name, err, strings.Join(left, "\n"))
				continue
			}
			recovered++
		}
	}
	return recovered, tried, len(steps)
}

// mountsOf counts the mounts of namespaces.
func mountsOf(t *testing.T) int {
	t.Helper()
	return strings.Count(string(expect.Value(os.ReadFile("/proc/thread-self/mountinfo"))(t)), " - nsfs ")
}

func leftOf(before, after audit.Lines) audit.Lines {
	added, gone := audit.Diff(before, after)
	for _, line := range gone {
		added = append(added, "gone: "+line)
	}
	return added
}

// record attaches and detaches a container, and saves a copy of the directories
// at each step. It returns the copies' paths in order.
func (h *host) record(home func(*host) (string, []cni.NamespaceOpts)) []string {
	h.t.Helper()
	dirs := h.durable()
	for _, dir := range dirs {
		expect.NoError(h.t, os.MkdirAll(dir, 0o755))
	}
	r := h.runtime(h.settings(1))
	path, opts := home(h)
	h.liveOnce(r, path, append(opts, ports(10000)...))
	h.spoilAll(fault{CopyTo: h.path("steps"), Copy: dirs}, append(chain(), "host-local")...)
	h.snapshot("00 nothing")
	expect.Value(r.Setup(context.Background(), "m12", path, append(opts, ports(10000)...)...))(h.t)
	h.snapshot("09 attached")
	h.saveHomes()
	expect.NoError(h.t, r.Remove(context.Background(), "m12", path))
	h.snapshot("18 removed")
	return h.snapshots()
}

// liveOnce attaches and detaches the container, so that its ID has been used. It saves the
// state in between.
func (h *host) liveOnce(r *cni.Runtime, path string, opts []cni.NamespaceOpts) {
	h.t.Helper()
	expect.Value(r.Setup(context.Background(), "m12", path, opts...))(h.t)
	expect.NoError(h.t, copyDir(h.path("state"), h.path("first", "state")))
	expect.NoError(h.t, r.Remove(context.Background(), "m12", path))
}

// recordLo is record for a container with lo alone, whose record is not synced.
func (h *host) recordLo(home func(*host) (string, []cni.NamespaceOpts)) []string {
	h.t.Helper()
	return h.recordUnsynced(home, cni.WithLoNetwork)
}

// recordKernelOnly is record for a bridge with fixed addresses: its plugins write no file,
// and its record is not synced.
func (h *host) recordKernelOnly(home func(*host) (string, []cni.NamespaceOpts)) []string {
	h.t.Helper()
	return h.recordUnsynced(home, cni.WithBuiltinPlugins(), cni.WithConfListBytes([]byte(`{"cniVersion": "1.0.0", "name": "fixed", "plugins": [
		{"type": "bridge", "bridge": "cni0", "ipam": {"type": "static", "addresses": [{"address": "10.99.0.2/24"}]}}]}`)))
}

// recordFlannel is record for flannel, whose delegate is the bridge. flanneld's file is in
// memory, and lost.
func (h *host) recordFlannel(home func(*host) (string, []cni.NamespaceOpts)) []string {
	h.t.Helper()
	flannel, lease := h.flannel()
	steps := h.recordUnsynced(home, cni.WithBuiltinPlugins(), cni.WithConfListBytes(fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "net0", "plugins": [%s]}`, flannel)))
	expect.NoError(h.t, os.Remove(lease))
	return steps
}

func (h *host) recordUnsynced(home func(*host) (string, []cni.NamespaceOpts), opts ...cni.Opt) []string {
	h.t.Helper()
	for _, dir := range h.durable() {
		expect.NoError(h.t, os.MkdirAll(dir, 0o755))
	}
	s := h.settings(0)
	r, err := cni.New(append(opts, cni.WithBuiltinFallback(), cni.WithStateDir(s.StateDir), cni.WithOwner("faults"), cni.WithHostNetNS(s.HostNetNS),
		cni.WithObserver(func(_ context.Context, e cni.Event) {
			h.snapshot(map[string]string{"ADD": "01 ADD", "DEL": "03 DEL"}[e.Operation])
		}))...)
	expect.NoError(h.t, err)
	path, setup := home(h)
	h.liveOnce(r, path, setup)
	expect.NoError(h.t, os.RemoveAll(h.path("steps")))
	h.snapshot("00 nothing")
	expect.NoError(h.t, expect.Err(r.Setup(context.Background(), "m12", path, setup...)))
	h.snapshot("02 attached")
	h.saveHomes()
	expect.NoError(h.t, r.Remove(context.Background(), "m12", path))
	h.snapshot("04 removed")
	return h.snapshots()
}

// durable returns the directories that outlive a power cut.
func (h *host) durable() []string { return []string{h.path("state"), h.path("ipam"), h.path("homes")} }

// snapshot saves a copy of the durable directories.
func (h *host) snapshot(name string) {
	h.t.Helper()
	for _, dir := range h.durable() {
		expect.NoError(h.t, copyDir(dir, h.path("steps", name, filepath.Base(dir))))
	}
}

// copyDir copies the content of the disk: a mounted namespace becomes an empty
// file.
func copyDir(from, to string) error {
	return filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		if e.IsDir() {
			return os.MkdirAll(target, 0o700)
		}
		data, err := os.ReadFile(path)
		if errors.Is(err, unix.EINVAL) {
			data, err = nil, nil
		}
		if err != nil {
			return err
		}
		return os.WriteFile(target, data, 0o600)
	})
}

// snapshots returns the paths of the copies in order.
func (h *host) snapshots() (steps []string) {
	h.t.Helper()
	for _, e := range expect.Value(os.ReadDir(h.path("steps")))(h.t) {
		steps = append(steps, h.path("steps", e.Name()))
	}
	return steps
}

// fakeBoot lets the test set the machine's boot ID.
func fakeBoot(t *testing.T) string {
	const real = "/proc/sys/kernel/random/boot_id"
	fake := filepath.Join(t.TempDir(), "boot_id")
	expect.NoError(t, os.WriteFile(fake, []byte("first\n"), 0o600))
	expect.NoError(t, unix.Mount(fake, real, "", unix.MS_BIND, ""))
	t.Cleanup(func() { expect.NoError(t, unix.Unmount(real, 0)) })
	return fake
}

// saveHomes keeps the files below the mounts of namespaces: a power cut leaves the very
// files, by which a runtime knows its own.
func (h *host) saveHomes() {
	h.t.Helper()
	below := h.path("below") // shows the directory without the mounts in it
	expect.NoError(h.t, os.MkdirAll(h.path("homes", ".saved"), 0o755))
	expect.NoError(h.t, os.Mkdir(below, 0o755))
	expect.NoError(h.t, unix.Mount(h.path("homes"), below, "", unix.MS_BIND, ""))
	for _, f := range expect.Value(os.ReadDir(below))(h.t) {
		if !f.IsDir() {
			expect.NoError(h.t, os.Link(filepath.Join(below, f.Name()), filepath.Join(below, ".saved", f.Name())))
		}
	}
	expect.NoError(h.t, unix.Unmount(below, 0))
	expect.NoError(h.t, os.Rename(h.path("homes", ".saved"), h.path("saved")))
}

func (h *host) restore(step string) {
	h.t.Helper()
	homes := h.path("homes")
	expect.NoError(h.t, os.RemoveAll(homes))
	expect.NoError(h.t, os.Mkdir(homes, 0o755))
	for _, f := range expect.Value(os.ReadDir(filepath.Join(step, "homes")))(h.t) {
		if !f.IsDir() {
			expect.NoError(h.t, os.Link(h.path("saved", f.Name()), filepath.Join(homes, f.Name())))
		}
	}
	for _, dir := range []string{"state", "ipam"} {
		expect.NoError(h.t, os.RemoveAll(h.path(dir)))
		expect.NoError(h.t, copyDir(filepath.Join(step, dir), h.path(dir)))
	}
}

// cut is the effect of a power cut on a step's directories.
type cut struct {
	name string
	do   func() error
}

// cuts returns the possible ones at a step. The first does nothing.
func (h *host) cuts(step string, random *rand.Rand) []cut {
	h.t.Helper()
	find := func(pattern string) []string {
		paths := expect.Value(filepath.Glob(filepath.Join(step, pattern)))(h.t)
		for i, path := range paths {
			paths[i] = h.path(expect.Value(filepath.Rel(step, path))(h.t))
		}
		return paths
	}
	all := []cut{{"as it was", func() error { return nil }}}
	add := func(name string, do func() error) { all = append(all, cut{name, do}) }
	const records = "state/embedcni/attachments/"
	for _, file := range find(records + "*.json") {
		base, log := halves(h.fileOf(step, file))
		for _, n := range cutsOf(log, random) {
			add(fmt.Sprintf("the log ends after %d bytes", n), func() error { return os.Truncate(file, int64(len(base)+n)) })
		}
		if len(log) > 0 {
			add("the log is zeros", func() error { return os.WriteFile(file, append(bytes.Clone(base), make([]byte, len(log))...), 0o600) })
		}
	}
	for _, cached := range find("state/results/*") {
		add("the cache is empty", func() error { return os.Truncate(cached, 0) })
		add("the cache is lost", func() error { return os.Remove(cached) })
		add("the cache is torn", func() error { return os.Truncate(cached, 100) })
	}
	// While anything is held there is a record: it was synced before, and is
	// deleted later. One of plugins that write no file is not synced, and their cached result is there after it.
	lo := append(find("state/results/cni-loopback-*"), find("state/results/fixed-*")...)
	held := slices.DeleteFunc(find("state/results/*"), func(file string) bool { return slices.Contains(lo, file) })
	for _, address := range find("ipam/net0/10.*") {
		held = append(held, address)
		add("the address is nobody's", func() error { return os.Truncate(address, 0) })
	}
	for _, address := range find("ipam/net0/10.*") {
		add("the address is nobody's, and the log is lost", func() error {
			return errors.Join(os.Truncate(address, 0), h.loseLogs(step))
		})
	}
	for _, kept := range find("ipam/flannel/*") {
		held = append(held, kept)
		add("flannel's file is lost", func() error { return os.Remove(kept) })
		add("flannel's file is empty", func() error { return os.Truncate(kept, 0) })
		add("flannel's file is torn, and the log is lost", func() error { return errors.Join(os.Truncate(kept, 50), h.loseLogs(step)) })
	}
	h.cutsOfReleases(step, find, add)
	for _, home := range find("homes/m12") {
		add("the file of the namespace was not made yet, or is gone", func() error { return os.Remove(home) })
	}
	for _, file := range find(records + "*.json") {
		h.fileCuts(file, h.fileOf(step, file), len(held) == 0, lo, random, add)
	}
	return all
}

// cutsOfReleases returns the cuts that undo a deletion which was not synced. While there is
// a record, the release of its address may not be on the disk; the release of the first
// life's is, because its record was deleted, and that may not be.
func (h *host) cutsOfReleases(step string, find func(pattern string) []string, add func(string, func() error)) {
	h.t.Helper()
	const records, addresses = "state/embedcni/attachments/*.json", "ipam/net0/10.*"
	back := func(from, pattern string) (undo []func() error) {
		for _, file := range expect.Value(filepath.Glob(filepath.Join(from, pattern)))(h.t) {
			data := expect.Value(os.ReadFile(file))(h.t)
			rel := expect.Value(filepath.Rel(from, file))(h.t)
			undo = append(undo, func() error { return os.WriteFile(h.path(rel), data, 0o600) })
		}
		return undo
	}
	recorded := find(records)
	if len(recorded) > 0 && len(find(addresses)) == 0 {
		for _, undo := range back(h.path("steps", "09 attached"), addresses) {
			add("the release is undone", undo)
			add("the release is undone, and the log is lost", func() error { return errors.Join(undo(), h.loseLogs(step)) })
		}
	}
	if len(recorded) == 0 {
		for _, undo := range back(h.path("first"), records) {
			add("the record of the first life is there again", undo)
		}
	}
}

// loseLogs cuts the records of a step after their bases.
func (h *host) loseLogs(step string) error {
	files, err := filepath.Glob(filepath.Join(step, "state/embedcni/attachments/*.json"))
	for _, file := range files {
		rel, rerr := filepath.Rel(step, file)
		base, _ := halves(h.fileOf(step, h.path(rel)))
		err = errors.Join(err, rerr, os.Truncate(h.path(rel), int64(len(base))))
	}
	return err
}

// halves returns the base, which was synced, and the log.
func halves(data []byte) (base, log []byte) {
	_, log, _ = bytes.Cut(data, []byte("\n"))
	log = bytes.TrimLeft(log, "\n")
	return data[:len(data)-len(log)], log
}

// fileCuts returns the cuts of a record's file: during the writing of the base,
// and during the record's deletion, when nothing else is held.
func (h *host) fileCuts(file string, data []byte, free bool, lo []string, random *rand.Rand, add func(string, func() error)) {
	base, _ := halves(data)
	pin := filepath.Join(filepath.Dir(file), "netns", strings.TrimSuffix(filepath.Base(file), ".json"))
	spare := filepath.Join(filepath.Dir(file), "spare.0")
	// A namespace's own path is made when the record has reached the disk, and goes first.
	unmade := func() error {
		return errors.Join(unlessMissing(os.Remove(pin)), unlessMissing(os.Remove(h.path("homes", "m12"))))
	}
	// As long as the record is not in place, or after it is gone, nothing is cached.
	gone := func(err error) error {
		for _, cached := range lo {
			err = errors.Join(err, os.Remove(cached))
		}
		return err
	}
	for _, cached := range lo {
		for _, n := range []int{0, random.IntN(len(base)), len(base) - 1} {
			add(fmt.Sprintf("the base is there with %d bytes, and the cache", n), func() error { return os.Truncate(file, int64(n)) })
			add(fmt.Sprintf("the base is there with %d bytes, and the cache is empty", n), func() error {
				return errors.Join(os.Truncate(file, int64(n)), os.Truncate(cached, 0))
			})
			add(fmt.Sprintf("the base is there with %d bytes, and the cache is torn", n), func() error {
				return errors.Join(os.Truncate(file, int64(n)), os.Truncate(cached, 100))
			})
		}
		add("the record and the cache are zeros", func() error {
			return errors.Join(os.WriteFile(file, make([]byte, len(data)), 0o600), os.WriteFile(cached, make([]byte, 300), 0o600))
		})
	}
	for _, n := range []int{0, random.IntN(len(base)), len(base)} {
		add(fmt.Sprintf("another base of %d bytes was begun", n), func() error { return os.WriteFile(file+".new", base[:n], 0o600) })
		if !free {
			continue
		}
		add(fmt.Sprintf("the base was begun, %d bytes", n), func() error {
			return gone(errors.Join(os.Remove(file), unmade(), os.WriteFile(file+".new", base[:n], 0o600)))
		})
		// A first record is in place before it is synced, while nothing durable
		// is attached.
		add(fmt.Sprintf("the base is there with %d bytes", n), func() error {
			return errors.Join(unmade(), os.Truncate(file, int64(n)))
		})
		// An earlier version reused the file, and its old name has come back.
		next := h.nextBase(base)
		add(fmt.Sprintf("the base is another's from byte %d", n), func() error {
			return gone(errors.Join(unmade(), os.WriteFile(file, append(bytes.Clone(next[:min(n, len(next))]), data[min(n, len(data)):]...), 0o600)))
		})
	}
	add("the pin was not made yet, or is gone already", func() error { return unlessMissing(os.Remove(pin)) })
	if free {
		add("only the pin is left", func() error {
			return gone(errors.Join(os.Remove(file), unlessMissing(os.Remove(h.path("homes", "m12")))))
		})
		add("an earlier version kept the record's file", func() error { return gone(errors.Join(os.Rename(file, spare), unmade())) })
	}
}

// nextBase returns a similar base for another container.
func (h *host) nextBase(base []byte) []byte {
	h.t.Helper()
	dir := h.t.TempDir()
	var line struct {
		Record *record.Record `json:"record"`
	}
	_, text, _ := bytes.Cut(base, []byte(" "))
	expect.NoError(h.t, json.Unmarshal(text, &line))
	line.Record.ContainerID = "next"
	expect.NoError(h.t, record.Open(dir).Begin(line.Record))
	return expect.Value(os.ReadFile(filepath.Join(dir, record.Name("next")+".json")))(h.t)
}

func unlessMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// fileOf returns the step's copy of a host's file.
func (h *host) fileOf(step, path string) []byte {
	h.t.Helper()
	return expect.Value(os.ReadFile(filepath.Join(step, expect.Value(filepath.Rel(h.dir, path))(h.t))))(h.t)
}

// cutsOf returns lengths at which to cut a log: each end of a line, the middle
// of each, and a random one.
func cutsOf(data []byte, random *rand.Rand) []int {
	lengths := []int{random.IntN(len(data) + 1)}
	at := 0
	for line := range bytes.Lines(data) {
		lengths = append(lengths, at, at+len(line)/2)
		at += len(line)
	}
	return lengths
}
