package behaviour_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// wantUntouched checks for an error that says that nothing was done, and why.
func wantUntouched(t testing.TB, what string, err error, newer bool, causes ...error) {
	t.Helper()
	var e *cni.RecordError
	expect.That(t, errors.As(err, &e) && e.Newer == newer && strings.Contains(e.Error(), "nothing was changed"),
		"%s: error %v, want a RecordError with Newer %v", what, err, newer)
	expect.That(t, !newer || !strings.Contains(err.Error(), "CleanUp"), "%s: error %v advises CleanUp, which leaves the record alone too", what, err)
	expect.Is(t, err, causes...)
}

// untouchedBy checks that every call for c1 is refused and runs no plugin.
func (s *stage) untouchedBy(r *cni.Runtime, newer bool, causes ...error) {
	s.T.Helper()
	path := s.Path("netns", "c1")
	_, lookup := r.Lookup("c1")
	_, repaired := r.Repair(s.T.Context(), "c1", cni.RepairOptions{})
	_, clean := r.CleanUp(s.T.Context(), cni.CleanUpTarget{ContainerID: "c1", Network: "net", IfName: "eth0"})
	for what, err := range map[string]error{
		"Setup":              testhost.SetUp(s.T.Context(), r, "c1", path)(),
		"Setup of another":   testhost.SetUp(s.T.Context(), r, "c1", path, cni.WithNetwork("net", cni.WithInterfaceName("eth7")))(),
		"Remove":             r.Remove(s.T.Context(), "c1", path),
		"Remove of a part":   r.Remove(s.T.Context(), "c1", "", cni.WithNetwork("net")),
		"Remove of what was": r.Remove(s.T.Context(), "c1", "", cni.WithNetwork("gone")),
		"Check":              r.Check(s.T.Context(), "c1", path),
		"Lookup":             lookup,
		"CleanUp":            clean,
		"Repair":             repaired,
	} {
		wantUntouched(s.T, what, err, newer, causes...)
	}
	expect.Same(s.T, "calls", s.Took(), []string{})
	expect.Same(s.T, "kept", s.Pinned("c1"), true)
}

// TestFault_F44_ARecordThatCannotBeReadCostsOneContainer: that one is kept, and
// the others are managed as usual.
func TestFault_F44_ARecordThatCannotBeReadCostsOneContainer(t *testing.T) {
	for cause, spoil := range unread() {
		t.Run(unix.ErrnoName(cause), func(t *testing.T) {
			s, r, conf := inhabited(t, "c1", "c2")
			name := "record " + testhost.Hashed("c1")
			mend := spoil(s.Host, s.RecordFile("c1")+".json")
			for _, owner := range []string{"tester", "other"} { // its owner is unknown
				report := expect.Value(s.restarted(conf, cni.WithOwner(owner)).Recover(t.Context()))(t)
				expect.Same(t, owner+": removed", report.Removed, nil)
				wantUntouched(t, owner+": Recover", report.Skipped[name], false, cause)
				if owner == "tester" {
					expect.Same(t, "adopted", report.Adopted, []string{"c2"})
				}
			}
			expect.Same(t, "calls", s.Took(), []string{"CHECK p c2/eth0", "CHECK q c2/eth0"})
			s.untouchedBy(r, false, cause)
			on := testhost.Recorded(t, r)
			slices.Sort(on)
			expect.Same(t, "on record", on, []string{"/ unknown", "c2/eth0 attached"})

			report, err := r.GC(t.Context(), cni.GCOptions{KeepNone: true})
			expect.Is(t, err, cause) // plugins get no incomplete list of attachments
			expect.Same(t, "removed", report.Removed, []string{"c2"})
			wantUntouched(t, "GC", report.Skipped[name], false, cause)
			expect.Same(t, "calls", s.Took(), []string{"DEL q c2/eth0", "DEL p c2/eth0"})

			mend()
			wantRecover(t, s.restarted(conf), adopted)
			s.TakeCalls()
			expect.NoError(t, r.Remove(t.Context(), "c1", ""))
			expect.Same(t, "calls", s.Took(), []string{"DEL q c1/eth0", "DEL p c1/eth0"})
		})
	}
}

// TestFault_F59_RecoverWithFewDescriptorsRemovesNobody, however few there are.
func TestFault_F59_RecoverWithFewDescriptorsRemovesNobody(t *testing.T) {
	t.Run("whole", func(t *testing.T) { recoverWithFew(t, false) })
	t.Run("damaged", func(t *testing.T) { recoverWithFew(t, true) })
}

func recoverWithFew(t *testing.T, damaged bool) {
	s, r, conf := inhabited(t, "c1", "c2", "c3")
	for _, id := range []string{"c1", "c2", "c3"} {
		if damaged {
			spoilBase(s.Host, id, "{")
		}
	}
	var all unix.Rlimit
	expect.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &all))
	restore := func() { expect.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &all)) }
	t.Cleanup(restore)
	limit := uint64(0)
	for ; ; limit++ {
		few := all
		few.Cur = limit
		r := s.restarted(conf) // has read nothing yet
		expect.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &few))
		report, err := r.Recover(t.Context())
		collected, gerr := r.GC(t.Context(), cni.GCOptions{Keep: []string{"c1", "c2", "c3"}})
		restore()
		for _, rep := range []*cni.Report{report, collected} {
			if rep != nil {
				expect.Same(t, fmt.Sprint("removed with ", limit, " descriptors"), rep.Removed, nil)
			}
		}
		expect.Lacks(t, fmt.Sprintf("calls with %d descriptors", limit), strings.Join(s.Took(), "\n"), "DEL")
		if t.Failed() || err == nil && gerr == nil && len(report.Adopted) == 3 && len(report.Failed)+len(collected.Failed) == 0 && len(report.Kept) == map[bool]int{true: 3}[damaged] {
			break
		}
	}
	t.Logf("enough: %d", limit)
	expect.Same(t, "on record", len(testhost.Recorded(t, r)), 3)
	for _, id := range []string{"c1", "c2", "c3"} {
		expect.Same(t, "kept", s.Pinned(id), true)
	}
}

// TestFault_F44_TheSubnetOfARecordThatCannotBeUsedIsForwarded: of two containers on a
// subnet, the second is removed while the record of the first cannot be used. The first still
// has its rules.
func TestFault_F44_TheSubnetOfARecordThatCannotBeUsedIsForwarded(t *testing.T) {
	spoils := map[string]func(h *testhost.Host, path string) func(){"newer": func(h *testhost.Host, _ string) func() {
		restore := expect.Value(os.ReadFile(h.RecordFile("c1") + ".json"))(t)
		(&stage{&testhost.Stage{Host: h}}).age("c1")
		return func() { expect.NoError(t, os.WriteFile(h.RecordFile("c1")+".json", restore, 0o600)) }
	}}
	for cause, spoil := range unread() {
		spoils[unix.ErrnoName(cause)] = spoil
	}
	h, network := newRealHost(t), everything()
	r := h.Runtime(cni.WithBuiltinPlugins(), cni.WithConfListBytes(network.Conf("net", "1.0.0", h.Path("ipam"))))
	path, other := h.Container("c1"), h.Container("c2")
	before := h.Audit()
	testhost.MustSetUp(t, r, "c1", path)
	alone := h.Audit()
	for cause, spoil := range spoils {
		testhost.MustSetUp(t, r, "c2", other)
		mend := spoil(h.Host, h.RecordFile("c1")+".json")
		expect.NoError(t, r.Remove(t.Context(), "c2", ""))
		mend()
		added, gone := audit.Diff(alone, h.Audit())
		expect.Unchanged(t, cause, added, gone)
	}
	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
	h.WantClean(before)
}

// age rewrites a container's record as a later version would, and returns the
// file's new content.
func (s *stage) age(id string) []byte {
	s.T.Helper()
	path := s.RecordFile(id) + ".json"
	data := expect.Value(os.ReadFile(path))(s.T)
	base, log, _ := strings.Cut(string(data), "\n")
	base = strings.Replace(base[17:], `{"format":2,"record":{`, `{"format":3,"record":{"since":{"new":true},`, 1)
	sum := sha256.Sum256([]byte(base))
	data = []byte(hex.EncodeToString(sum[:8]) + " " + base + "\n" + log)
	expect.NoError(s.T, os.WriteFile(path, data, 0o600))
	return data
}

// TestFault_F43_ARecordOfANewerVersionIsLeftAlone by its owner and by others,
// who report it. Other containers are unaffected.
func TestFault_F43_ARecordOfANewerVersionIsLeftAlone(t *testing.T) {
	s, r, conf := inhabited(t, "c1", "c2")
	content := s.age("c1")
	wantRecover(t, s.restarted(conf, cni.WithOwner("other")), cni.Report{})
	report := expect.Value(s.restarted(conf).Recover(t.Context()))(t)
	expect.Same(t, "adopted", report.Adopted, []string{"c2"})
	expect.Same(t, "removed", report.Removed, nil)
	wantUntouched(t, "Recover", report.Skipped["c1"], true)
	expect.Same(t, "calls", s.Took(), []string{"CHECK p c2/eth0", "CHECK q c2/eth0"})
	s.untouchedBy(r, true)

	all := expect.Value(r.Attachments())(t)
	i := slices.IndexFunc(all, func(a cni.Attachment) bool { return a.ContainerID == "c1" })
	expect.Same(t, "c1", []any{all[i].Owner, all[i].State, strings.Contains(all[i].LastError, "newer version")}, []any{"tester", cni.Unknown, true})

	for _, dry := range []bool{true, false} {
		report, err := r.GC(t.Context(), cni.GCOptions{KeepNone: true, DryRun: dry})
		expect.Same(t, "removed", report.Removed, []string{"c2"})
		wantUntouched(t, "GC", report.Skipped["c1"], true)
		fails(t, err, "the list of attachments is incomplete")
	}
	expect.Same(t, "calls", s.Took(), []string{"DEL q c2/eth0", "DEL p c2/eth0"})
	expect.Same(t, "record", string(expect.Value(os.ReadFile(s.RecordFile("c1")+".json"))(t)), string(content))
	s.DelLink("c1", "eth0") // fails if it was removed
}

// panics is a caller's log handler that panics on messages like this one.
type panics struct {
	slog.Handler
	at string
}

func (panics) Enabled(context.Context, slog.Level) bool { return true }

func (p panics) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, p.at) {
		panic(r.Message)
	}
	return nil
}

// TestFault_F44_APanicReleasesLocks: a program that recovers from a panic,
// as servers do, can still attach containers.
func TestFault_F44_APanicReleasesLocks(t *testing.T) {
	for what, call := range map[string]func(s *stage, r *cni.Runtime){
		"Recover": func(s *stage, r *cni.Runtime) { _, _ = r.Recover(s.T.Context()) },
		"GC":      func(s *stage, r *cni.Runtime) { _, _ = r.GC(s.T.Context(), cni.GCOptions{Keep: []string{"c1"}}) },
	} {
		t.Run(what, func(t *testing.T) {
			s, _, conf := inhabited(t, "c1")
			r := s.restarted(conf, cni.WithLogger(slog.New(panics{at: "belongs to no record"})))
			write(s.Host, "state/embedcni/attachments/"+testhost.Hashed("c2")+".json.new", "")
			func() {
				defer func() { expect.Same(t, "a panic", recover() != nil, true) }()
				call(s, r)
			}()
			expect.NoError(t, r.Load(cni.WithLogger(nil), cni.WithConfListBytes(conf)))
			done := testhost.Begin(testhost.SetUp(t.Context(), r, "c3", s.Container("c3")))
			expect.NoError(t, expect.Await(t, "Setup", done))
		})
	}
}

// TestFault_F62_SeveralThatRecoverAtOnce: none fails because another one has
// just cleaned up the same container.
func TestFault_F62_SeveralThatRecoverAtOnce(t *testing.T) {
	s := newStage(t)
	const rounds, crowd, things = 30, 4, 8
	for range rounds {
		for i := range things {
			id := fmt.Sprint("gone-", i)
			write(s.Host, "state/embedcni/attachments/"+testhost.Hashed(id)+".json.new", "")
			write(s.Host, "state/embedcni/attachments/netns/"+testhost.Hashed(id), "")
			write(s.Host, fmt.Sprintf("state/embedcni/attachments/pool/1:%d/warm-x", i+1), "") // of dead processes
		}
		begun, done := make(chan struct{}), make(chan error, crowd)
		for range crowd {
			r := s.Runtime() // with separate locks, as in another process
			go func() {
				<-begun
				done <- expect.Reported(r.Recover(t.Context()))
			}()
		}
		close(begun)
		for range crowd {
			expect.NoError(t, expect.Await(t, "Recover", done))
		}
	}
	expect.Same(t, "left", expect.Value(filepath.Glob(s.Path("state/embedcni/attachments/pool/*")))(t), nil)
}

// TestFault_F44_APanicCostsOneContainer: containers are recovered in
// goroutines, where the caller could not recover from a panic.
func TestFault_F44_APanicCostsOneContainer(t *testing.T) {
	s, _, conf := inhabited(t, "c1", "c2")
	s.DelLink("c1", "eth0")
	report := expect.Value(s.restarted(conf, cni.WithLogger(slog.New(panics{at: "not known to be healthy"}))).Recover(t.Context()))(t)
	expect.Same(t, "adopted", report.Adopted, []string{"c2"})
	expect.Says(t, "a panic", report.Failed["c1"], "could not be removed: panic: ")
}

// TestFault_F59_ANamespaceThatCannotBeOpenedIsNotGone if the record is damaged
// and only the pin leads to it.
func TestFault_F59_ANamespaceThatCannotBeOpenedIsNotGone(t *testing.T) {
	s, _, conf := inhabited(t, "c1")
	spoilBase(s.Host, "c1", "{")
	expect.NoError(t, netns.Remove(s.Pin("c1")))
	expect.NoError(t, os.Symlink(s.Pin("c1"), s.Pin("c1")))
	defer func() { expect.NoError(t, os.Remove(s.Pin("c1"))) }()
	report := expect.Value(s.restarted(conf).Recover(t.Context()))(t)
	expect.Same(t, "removed", report.Removed, nil)
	expect.Is(t, report.Failed["c1"], syscall.ELOOP)
	expect.Same(t, "calls", s.Took(), []string{})
}

// spoilBase replaces the first line of a container's record but not its log.
func spoilBase(h *testhost.Host, id, content string) {
	h.T.Helper()
	path := h.RecordFile(id) + ".json"
	_, log, _ := bytes.Cut(expect.Value(os.ReadFile(path))(h.T), []byte("\n"))
	expect.NoError(h.T, os.WriteFile(path, slices.Concat([]byte(content), []byte("\n"), log), 0o600))
}

// unread lists ways to make a record's file unreadable, by the kernel's error.
// Each returns a function that makes it readable again.
func unread() map[syscall.Errno]func(h *testhost.Host, path string) func() {
	replaced := func(by func(path string) error) func(h *testhost.Host, path string) func() {
		return func(h *testhost.Host, path string) func() {
			expect.NoError(h.T, os.Rename(path, path+".aside"))
			expect.NoError(h.T, by(path))
			return func() {
				expect.NoError(h.T, os.Remove(path))
				expect.NoError(h.T, os.Rename(path+".aside", path))
			}
		}
	}
	return map[syscall.Errno]func(h *testhost.Host, path string) func(){
		syscall.EISDIR: replaced(func(path string) error { return os.Mkdir(path, 0o700) }),
		syscall.ELOOP:  replaced(func(path string) error { return os.Symlink(filepath.Base(path), path) }),
		// Nothing is mapped at address 0.
		syscall.EIO: replaced(func(path string) error { return os.Symlink("/proc/self/mem", path) }),
		syscall.EACCES: func(h *testhost.Host, path string) func() {
			expect.NoError(h.T, os.Chmod(path, 0))
			// Like a root without capabilities, the thread obeys the modes of files.
			restore := expect.Value(testhost.Without(unix.CAP_DAC_OVERRIDE, unix.CAP_DAC_READ_SEARCH))(h.T)
			return func() { expect.NoError(h.T, restore(), os.Chmod(path, 0o600)) }
		},
	}
}
