package cni_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

// withoutOverride has the test's thread obey the modes of files, as a program
// does that is root in name only.
func (h *host) withoutOverride() (restore func()) {
	h.t.Helper()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	wantNil(h.t, unix.Capget(&header, &have[0]))
	less := have
	less[0].Effective &^= 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH
	wantNil(h.t, unix.Capset(&header, &less[0]))
	return func() { wantNil(h.t, unix.Capset(&header, &have[0])) }
}

// unread are ways in which the file of a record cannot be read, by the kernel's
// word for it. Each returns how to make it good again.
func unread() map[syscall.Errno]func(s *stage, path string) func() {
	replaced := func(by func(path string) error) func(s *stage, path string) func() {
		return func(s *stage, path string) func() {
			wantNil(s.t, os.Rename(path, path+".aside"))
			wantNil(s.t, by(path))
			return func() {
				wantNil(s.t, os.Remove(path))
				wantNil(s.t, os.Rename(path+".aside", path))
			}
		}
	}
	return map[syscall.Errno]func(s *stage, path string) func(){
		syscall.EISDIR: replaced(func(path string) error { return os.Mkdir(path, 0o700) }),
		syscall.ELOOP:  replaced(func(path string) error { return os.Symlink(filepath.Base(path), path) }),
		// Nothing is mapped at address 0.
		syscall.EIO: replaced(func(path string) error { return os.Symlink("/proc/self/mem", path) }),
		syscall.EACCES: func(s *stage, path string) func() {
			wantNil(s.t, os.Chmod(path, 0))
			restore := s.withoutOverride()
			return func() { restore(); wantNil(s.t, os.Chmod(path, 0o600)) }
		},
	}
}

// wantUntouched wants an error that says that nothing was done, and why.
func wantUntouched(t testing.TB, what string, err error, newer bool, causes ...error) {
	t.Helper()
	var e *cni.RecordError
	if !errors.As(err, &e) || e.Newer != newer || !strings.Contains(e.Error(), "nothing was changed") {
		t.Errorf("%s: error %v, want a RecordError with Newer %v", what, err, newer)
	}
	wantIs(t, err, causes...)
}

// untouchedBy wants every call for c1 to be refused, and to run nothing.
func (s *stage) untouchedBy(r *cni.Runtime, newer bool, causes ...error) {
	s.t.Helper()
	path := s.path("netns", "c1")
	_, lookup := r.Lookup("c1")
	_, clean := r.CleanUp(s.t.Context(), cni.CleanUpTarget{ContainerID: "c1", Network: "net", IfName: "eth0"})
	for what, err := range map[string]error{
		"Setup":              setUp(s.t.Context(), r, "c1", path)(),
		"Setup of another":   setUp(s.t.Context(), r, "c1", path, cni.WithNetwork("net", cni.WithInterfaceName("eth7")))(),
		"Remove":             r.Remove(s.t.Context(), "c1", path),
		"Remove of a part":   r.Remove(s.t.Context(), "c1", "", cni.WithNetwork("net")),
		"Remove of what was": r.Remove(s.t.Context(), "c1", "", cni.WithNetwork("gone")),
		"Check":              r.Check(s.t.Context(), "c1", path),
		"Lookup":             lookup,
		"CleanUp":            clean,
	} {
		wantUntouched(s.t, what, err, newer, causes...)
	}
	wantSame(s.t, "calls", s.took(), []string{})
	wantSame(s.t, "kept", s.pinned("c1"), true)
}

// TestFault_B9_ARecordThatCannotBeReadCostsOneContainer, which is kept; the
// others are managed as ever.
func TestFault_B9_ARecordThatCannotBeReadCostsOneContainer(t *testing.T) {
	for cause, spoil := range unread() {
		t.Run(unix.ErrnoName(cause), func(t *testing.T) {
			s, r, conf := inhabited(t, "c1", "c2")
			name := "record " + hashed("c1")
			mend := spoil(s, s.recordFile("c1")+".json")
			for _, owner := range []string{"tester", "other"} { // nobody can say whose it is
				report, err := s.restarted(conf, cni.WithOwner(owner)).Recover(t.Context())
				wantNil(t, err)
				wantSame(t, owner+": removed", report.Removed, nil)
				wantUntouched(t, owner+": Recover", report.Skipped[name], false, cause)
				if owner == "tester" {
					wantSame(t, "adopted", report.Adopted, []string{"c2"})
				}
			}
			wantSame(t, "calls", s.took(), []string{"CHECK p c2/eth0", "CHECK q c2/eth0"})
			s.untouchedBy(r, false, cause)
			on := recorded(t, r)
			slices.Sort(on)
			wantSame(t, "on record", on, []string{"/ unknown", "c2/eth0 attached"})

			report, err := r.GC(t.Context(), cni.GCOptions{KeepNone: true})
			wantIs(t, err, cause) // plugins are not told what is attached
			wantSame(t, "removed", report.Removed, []string{"c2"})
			wantUntouched(t, "GC", report.Skipped[name], false, cause)
			wantSame(t, "calls", s.took(), []string{"DEL q c2/eth0", "DEL p c2/eth0"})

			mend()
			recoverWith(t, s.restarted(conf), adopted)
			s.takeCalls()
			wantNil(t, r.Remove(t.Context(), "c1", ""))
			wantSame(t, "calls", s.took(), []string{"DEL q c1/eth0", "DEL p c1/eth0"})
		})
	}
}

// TestFault_C3_RecoverWithFewDescriptorsRemovesNobody, however few there are.
func TestFault_C3_RecoverWithFewDescriptorsRemovesNobody(t *testing.T) {
	t.Run("whole", func(t *testing.T) { recoverWithFew(t, false) })
	t.Run("damaged", func(t *testing.T) { recoverWithFew(t, true) })
}

func recoverWithFew(t *testing.T, damaged bool) {
	s, r, conf := inhabited(t, "c1", "c2", "c3")
	for _, id := range []string{"c1", "c2", "c3"} {
		if damaged {
			s.spoilBase(id, "{")
		}
	}
	var all unix.Rlimit
	wantNil(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &all))
	restore := func() { wantNil(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &all)) }
	t.Cleanup(restore)
	limit := uint64(0)
	for ; ; limit++ {
		few := all
		few.Cur = limit
		r := s.restarted(conf) // knows nothing yet
		wantNil(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &few))
		report, err := r.Recover(t.Context())
		collected, gerr := r.GC(t.Context(), cni.GCOptions{Keep: []string{"c1", "c2", "c3"}})
		restore()
		for _, rep := range []*cni.Report{report, collected} {
			if rep != nil {
				wantSame(t, fmt.Sprint("removed with ", limit, " descriptors"), rep.Removed, nil)
			}
		}
		for _, c := range s.took() {
			if strings.HasPrefix(c, "DEL") {
				t.Errorf("with %d descriptors: %s", limit, c)
			}
		}
		if t.Failed() || err == nil && gerr == nil && len(report.Adopted) == 3 && len(report.Failed)+len(collected.Failed) == 0 && len(report.Kept) == map[bool]int{true: 3}[damaged] {
			break
		}
	}
	t.Logf("enough: %d", limit)
	wantSame(t, "on record", len(recorded(t, r)), 3)
	for _, id := range []string{"c1", "c2", "c3"} {
		wantSame(t, "kept", s.pinned(id), true)
	}
}

// TestFault_C3_AWarmContainerOfARecordThatCannotBeReadStays: killed between two
// steps of taking it from a pool, the runtime has left both records.
func TestFault_C3_AWarmContainerOfARecordThatCannotBeReadStays(t *testing.T) {
	s, _, conf := inhabited(t, "c1", "warm-1")
	s.changeRecord("warm-1", func(rec *record.Record) { rec.Warm, rec.Runtime, rec.Life = true, "1:1", "" })
	s.changeRecord("c1", func(rec *record.Record) { rec.PluginID = "warm-1" })
	mend := unread()[syscall.EISDIR](s, s.recordFile("c1")+".json")
	r := s.restarted(conf)
	report, err := r.Recover(t.Context())
	wantNil(t, err)
	wantSame(t, "removed", report.Removed, nil)
	if report.Skipped["warm-1"] == nil {
		t.Error("nothing is said of the container that was made ahead of time")
	}
	wantSame(t, "calls", s.took(), []string{})
	mend()
	recoverWith(t, r, adopted)
	wantSame(t, "on record", recorded(t, r), []string{"c1/eth0 attached"})
}

// age rewrites a container's record as a later version would, and returns the
// file's new content.
func (s *stage) age(id string) []byte {
	s.t.Helper()
	path := s.recordFile(id) + ".json"
	data, err := os.ReadFile(path)
	wantNil(s.t, err)
	base, log, _ := strings.Cut(string(data), "\n")
	base = strings.Replace(base[17:], `{"format":2,"record":{`, `{"format":3,"record":{"since":{"new":true},`, 1)
	sum := sha256.Sum256([]byte(base))
	data = []byte(hex.EncodeToString(sum[:8]) + " " + base + "\n" + log)
	wantNil(s.t, os.WriteFile(path, data, 0o600))
	return data
}

// TestFault_B8_ARecordOfANewerVersionIsLeftAlone by its owner and by others, who
// say so; the rest goes on.
func TestFault_B8_ARecordOfANewerVersionIsLeftAlone(t *testing.T) {
	s, r, conf := inhabited(t, "c1", "c2")
	content := s.age("c1")
	recoverWith(t, s.restarted(conf, cni.WithOwner("other")), cni.Report{})
	report, err := s.restarted(conf).Recover(t.Context())
	wantNil(t, err)
	wantSame(t, "adopted", report.Adopted, []string{"c2"})
	wantSame(t, "removed", report.Removed, nil)
	wantUntouched(t, "Recover", report.Skipped["c1"], true)
	wantSame(t, "calls", s.took(), []string{"CHECK p c2/eth0", "CHECK q c2/eth0"})
	s.untouchedBy(r, true)

	all, err := r.Attachments()
	wantNil(t, err)
	i := slices.IndexFunc(all, func(a cni.Attachment) bool { return a.ContainerID == "c1" })
	wantSame(t, "c1", []any{all[i].Owner, all[i].State, strings.Contains(all[i].LastError, "newer version")}, []any{"tester", cni.Unknown, true})

	for _, dry := range []bool{true, false} {
		report, err = r.GC(t.Context(), cni.GCOptions{KeepNone: true, DryRun: dry})
		wantSame(t, "removed", report.Removed, []string{"c2"})
		wantUntouched(t, "GC", report.Skipped["c1"], true)
		if err == nil || !strings.Contains(err.Error(), "what is attached is not known") {
			t.Errorf("error %v, want that what is attached is not known", err)
		}
	}
	wantSame(t, "calls", s.took(), []string{"DEL q c2/eth0", "DEL p c2/eth0"})
	now, err := os.ReadFile(s.recordFile("c1") + ".json")
	wantNil(t, err)
	wantSame(t, "record", string(now), string(content))
	s.delLink("c1", "eth0") // fails if it was removed
}

// TestFault_B8_ASetupKeepsWhatANewerVersionHasNoted in the record of a container
// to which it adds an interface.
func TestFault_B8_ASetupKeepsWhatANewerVersionHasNoted(t *testing.T) {
	s, r, _ := inhabited(t, "c1")
	path := s.recordFile("c1") + ".json"
	data, err := os.ReadFile(path)
	wantNil(t, err)
	base, log, _ := strings.Cut(string(data), "\n")
	base = strings.Replace(base[17:], `"record":{`, `"record":{"later":{"x":1},`, 1)
	base = strings.Replace(base, `"networks":[{`, `"networks":[{"latest":"y",`, 1)
	sum := sha256.Sum256([]byte(base))
	wantNil(t, os.WriteFile(path, []byte(hex.EncodeToString(sum[:8])+" "+base+"\n"+log), 0o600))
	wantNil(t, setUp(t.Context(), r, "c1", s.path("netns", "c1"), cni.WithNetwork("net", cni.WithInterfaceName("eth7")))())
	now, err := os.ReadFile(path)
	wantNil(t, err)
	for _, member := range []string{`"later":{"x":1}`, `"latest":"y"`, `"ifName":"eth7"`} {
		if !strings.Contains(string(now), member) {
			t.Errorf("%s is not in the record: %s", member, now)
		}
	}
}

// panics is a caller's log handler that fails for messages like this one.
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

// TestFault_B9_APanicReleasesWhatIsHeld: a program that catches one, as servers
// do, attaches containers afterwards.
func TestFault_B9_APanicReleasesWhatIsHeld(t *testing.T) {
	for what, call := range map[string]func(s *stage, r *cni.Runtime){
		"Recover": func(s *stage, r *cni.Runtime) { _, _ = r.Recover(s.t.Context()) },
		"GC":      func(s *stage, r *cni.Runtime) { _, _ = r.GC(s.t.Context(), cni.GCOptions{Keep: []string{"c1"}}) },
	} {
		t.Run(what, func(t *testing.T) {
			s, _, conf := inhabited(t, "c1")
			r := s.restarted(conf, cni.WithLogger(slog.New(panics{at: "belongs to no record"})))
			s.write("state/embedcni/attachments/"+hashed("c2")+".json.new", "")
			func() {
				defer func() {
					if recover() == nil {
						t.Error("no panic")
					}
				}()
				call(s, r)
			}()
			wantNil(t, r.Load(cni.WithLogger(nil), cni.WithConfListBytes(conf)))
			done := begin(setUp(t.Context(), r, "c3", s.container("c3")))
			wantNil(t, await(t, "Setup", done))
		})
	}
}

// TestFault_C4_SeveralThatRecoverAtOnce do not fail because another one has just
// cleaned up what they were about to.
func TestFault_C4_SeveralThatRecoverAtOnce(t *testing.T) {
	s := newStage(t)
	const rounds, crowd, things = 30, 4, 8
	for round := range rounds {
		for i := range things {
			id := fmt.Sprint("gone-", i)
			s.write("state/embedcni/attachments/"+hashed(id)+".json.new", "")
			s.write("state/embedcni/attachments/netns/"+hashed(id), "")
			s.write(fmt.Sprintf("state/embedcni/attachments/pool/1:%d/warm-x", i+1), "") // of processes that are dead
		}
		begun, done := make(chan struct{}), make(chan error, crowd)
		for range crowd {
			r := s.runtime() // with locks of its own, as in another process
			go func() {
				<-begun
				report, err := r.Recover(t.Context())
				if report != nil {
					err = errors.Join(err, report.Err())
				}
				done <- err
			}()
		}
		close(begun)
		for range crowd {
			if err := await(t, "Recover", done); err != nil {
				t.Errorf("round %d: %v", round, err)
			}
		}
	}
	left, err := filepath.Glob(s.path("state/embedcni/attachments/pool/*"))
	wantNil(t, err)
	wantSame(t, "left", left, nil)
}

// leased is a built-in plugin that has an address for each container, and asks
// in its DEL which ones others have.
type leased struct {
	idle
	inUse *[]netip.Addr
}

func (leased) Add(_ context.Context, r *plugin.Request) (*types100.Result, error) {
	return &types100.Result{
		Interfaces: []*types100.Interface{{Name: r.IfName, Sandbox: r.NetNS}},
		IPs:        []*types100.IPConfig{{Address: net.IPNet{IP: net.IP{10, 9, 0, r.ContainerID[1]}, Mask: net.CIDRMask(24, 32)}}},
	}, nil
}

func (p leased) Del(ctx context.Context, _ *plugin.Request) (err error) {
	*p.inUse, err = caller.From(ctx).InUse()
	return err
}

// TestFault_B9_TheAddressesOfARecordThatCannotBeReadStayInUse: rules for them are
// not a removed neighbour's. libcni's cache has the result too.
func TestFault_B9_TheAddressesOfARecordThatCannotBeReadStayInUse(t *testing.T) {
	s := newStage(t)
	var inUse []netip.Addr
	r := s.runtime(cni.WithBuiltins(map[string]plugin.Plugin{"p": leased{inUse: &inUse}}), listOfTypes("net", "p"))
	for _, id := range []string{"c1", "c2"} {
		wantNil(t, setUp(t.Context(), r, id, s.container(id))())
	}
	unread()[syscall.EISDIR](s, s.recordFile("c1")+".json")
	wantNil(t, r.Remove(t.Context(), "c2", ""))
	wantSame(t, "addresses in use", inUse, []netip.Addr{netip.AddrFrom4([4]byte{10, 9, 0, '1'})})
}

// TestFault_B9_APanicCostsOneContainer: containers are recovered in goroutines,
// in which nobody else could catch it.
func TestFault_B9_APanicCostsOneContainer(t *testing.T) {
	s, _, conf := inhabited(t, "c1", "c2")
	s.delLink("c1", "eth0")
	report, err := s.restarted(conf, cni.WithLogger(slog.New(panics{at: "not known to be healthy"}))).Recover(t.Context())
	wantNil(t, err)
	wantSame(t, "adopted", report.Adopted, []string{"c2"})
	if failed := report.Failed["c1"]; failed == nil || !strings.Contains(failed.Error(), "could not be removed: panic: ") {
		t.Errorf("c1: %v, want the panic", failed)
	}
}

// TestFault_C3_ANamespaceThatCannotBeOpenedIsNotGone, where the record is damaged
// and only the pin leads there.
func TestFault_C3_ANamespaceThatCannotBeOpenedIsNotGone(t *testing.T) {
	s, _, conf := inhabited(t, "c1")
	s.spoilBase("c1", "{")
	wantNil(t, netns.Remove(s.pin("c1")))
	wantNil(t, os.Symlink(s.pin("c1"), s.pin("c1")))
	defer func() { wantNil(t, os.Remove(s.pin("c1"))) }()
	report, err := s.restarted(conf).Recover(t.Context())
	wantNil(t, err)
	wantSame(t, "removed", report.Removed, nil)
	wantIs(t, report.Failed["c1"], syscall.ELOOP)
	wantSame(t, "calls", s.took(), []string{})
}
