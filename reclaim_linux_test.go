package cni_test

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/plainfile"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/scripted"
)

// leasing is a stage with containers on a network whose addresses are
// host-local's, in a directory that the test fills: 10.9.0.2 is the first one's.
func leasing(t *testing.T, ids ...string) (s *stage, r *cni.Runtime) {
	t.Helper()
	return leasingBy(t, "1.0.0", ids...)
}

func leasingBy(t *testing.T, version string, ids ...string) (s *stage, r *cni.Runtime) {
	t.Helper()
	s = newStage(t)
	script := s.plugin(scripted.Script{}, "p")
	r = s.runtime(cni.WithOwner("tester"), cni.WithConfListBytes(fmt.Appendf(nil,
		`{"cniVersion": %q, "name": "net", "plugins": [{"type": "p", "script": %q, "ipam": {"type": "host-local", "dataDir": %q}}]}`,
		version, script, s.path("ipam"))))
	for i, id := range ids {
		path := s.container(id)
		result := fmt.Sprintf(`{"cniVersion": %q, "interfaces": [{"name": "eth0", "sandbox": %q}], "ips": [{"interface": 0, "address": "10.9.0.%d/24"}]}`,
			version, path, 2+i)
		s.on("p", "ADD", scripted.Action{Stdout: &result})
		wantNil(t, setUp(t.Context(), r, id, path)())
		s.addLink(id, "eth0")
	}
	s.on("p", "ADD", scripted.Action{})
	return s, r
}

// hold makes files as host-local does.
func (s *stage) hold(files map[string]string) {
	s.t.Helper()
	dir := filepath.Join(s.path("ipam"), "net")
	wantNil(s.t, os.MkdirAll(dir, 0o755))
	for name, content := range files {
		wantNil(s.t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
}

// held are the names of the files.
func (s *stage) held() []string {
	s.t.Helper()
	entries, err := os.ReadDir(filepath.Join(s.path("ipam"), "net"))
	wantNil(s.t, err)
	names := []string{}
	for _, e := range entries {
		if e.Name() != "lock" {
			names = append(names, e.Name())
		}
	}
	return names
}

// TestGCReclaimsAddressesThatCameBack: host-local does not sync, so that a power
// cut can undo the release of an address whose container's record is gone.
func TestGCReclaimsAddressesThatCameBack(t *testing.T) {
	s, r := leasing(t, "c1", "c2")
	wantNil(t, r.Remove(t.Context(), "c1", ""))
	files := map[string]string{
		"10.9.0.2":           "c1\r\neth0",
		"10.9.0.3":           "c2\r\neth0",    // lives
		"10.9.0.4":           "c1\r\neth9",    // was never recorded
		"10.9.0.5":           "c1-x\r\neth0",  // nor was this
		"10.9.0.6":           "stranger\r\nx", // another runtime's
		"10.9.0.8":           "c1\r\neth0",    // another program's container of that name
		"10.9.0.7":           "",
		"last_reserved_ip.0": "10.9.0.7",
	}
	s.hold(files)
	stale := "address 10.9.0.2 in " + filepath.Join(s.path("ipam"), "net")

	report, err := r.GC(t.Context(), cni.GCOptions{Keep: []string{"c2"}, DryRun: true})
	wantNil(t, err)
	wantSame(t, "dry run", *report, cni.Report{Reclaimed: []string{stale}})
	wantSame(t, "files", s.held(), slices.Sorted(maps.Keys(files)))

	report, err = s.runtime(cni.WithOwner("other")).GC(t.Context(), cni.GCOptions{KeepNone: true})
	wantNil(t, err)
	wantSame(t, "another owner's", *report, cni.Report{})

	report, err = r.GC(t.Context(), cni.GCOptions{Keep: []string{"c2"}})
	wantNil(t, err)
	wantSame(t, "report", *report, cni.Report{Adopted: []string{"c2"}, Reclaimed: []string{stale}})
	delete(files, "10.9.0.2")
	wantSame(t, "files", s.held(), slices.Sorted(maps.Keys(files)))

	// It does not look for it for ever.
	s.hold(map[string]string{"10.9.0.2": "c1\r\neth0"})
	report, err = r.GC(t.Context(), cni.GCOptions{Keep: []string{"c2"}})
	wantNil(t, err)
	wantSame(t, "the next report", *report, cni.Report{Adopted: []string{"c2"}})
}

// TestGCReclaimsWhatALostRecordWasAbout: the ledger knows of the container, its
// record is gone though nobody removed it.
func TestGCReclaimsWhatALostRecordWasAbout(t *testing.T) {
	s, r := leasing(t, "c1", "c2")
	s.hold(map[string]string{"10.9.0.2": "c1\r\neth0", "10.9.0.3": "c2\r\neth0"})
	for _, id := range []string{"c1", "c2"} {
		s.unrecord(id)
	}
	report, err := r.GC(t.Context(), cni.GCOptions{KeepNone: true})
	wantNil(t, err)
	wantSame(t, "what libcni's cache knows is attached", *report, cni.Report{})
	wantNil(t, os.RemoveAll(s.path("state", "results")))

	report, err = r.GC(t.Context(), cni.GCOptions{Keep: []string{"c2"}})
	wantNil(t, err)
	wantSame(t, "report", *report, cni.Report{
		Adopted:   []string{"c2"},
		Reclaimed: []string{"c1 eth0: address 10.9.0.2 in " + filepath.Join(s.path("ipam"), "net")},
	})
	wantSame(t, "files", s.held(), []string{"10.9.0.3"})
	wantSame(t, "calls", s.took(), []string{"ADD p c1/eth0", "ADD p c2/eth0"})
}

// TestFault_F39_ExecutablesAreToldWhatOthersHaveReserved: what one of them would
// release, as no attachment on record has it, is on their list.
func TestFault_F39_ExecutablesAreToldWhatOthersHaveReserved(t *testing.T) {
	s, r := leasingBy(t, "1.1.0", "c1", "c2")
	wantNil(t, r.Remove(t.Context(), "c1", ""))
	s.takeCalls()
	files := map[string]string{"10.9.0.3": "c2\r\neth0", "10.9.0.6": "stranger\r\nnet1", "10.9.0.2": "c1\r\neth0"}
	s.hold(files)
	report, err := r.GC(t.Context(), cni.GCOptions{Keep: []string{"c2"}})
	wantNil(t, err)
	dir := filepath.Join(s.path("ipam"), "net")
	wantSame(t, "report", *report, cni.Report{Adopted: []string{"c2"}, Reclaimed: []string{"address 10.9.0.2 in " + dir}})
	wantSame(t, "valid attachments", valid(t, s.takeCalls()), []string{"c2/eth0 stranger/net1"})

	for name, content := range map[string]string{"10.9.0.9": "for the printer", "10.9.0.10": "", "10.9.0.11": "c7"} {
		s.hold(map[string]string{name: content})
		report, err = r.GC(t.Context(), cni.GCOptions{Keep: []string{"c2"}})
		wantNil(t, err)
		wantSame(t, "report", *report, cni.Report{Adopted: []string{"c2"}, Left: []string{
			`network "net": plugins were not asked to collect garbage, since an executable host-local would release ` +
				filepath.Join(dir, name) + `, which says no attachment; delete it if it is nobody's reservation`}})
		wantSame(t, "calls", s.took(), []string{})
		wantNil(t, os.Remove(filepath.Join(dir, name)))
	}
	wantSame(t, "files", s.held(), []string{"10.9.0.3", "10.9.0.6"})
}

// TestFault_F39_AnAdministratorsEmptyReservationStays, whatever becomes of the
// containers beside it, and one that a killed plugin has left does not.
func TestFault_F39_AnAdministratorsEmptyReservationStays(t *testing.T) {
	s, r := leasing(t)
	dir := filepath.Join(s.path("ipam"), "net")
	wantNil(t, os.MkdirAll(dir, 0o755))
	s.hold(map[string]string{"10.9.0.20": ""})
	waitForTick(t)
	gate := s.gate("add")
	s.on("p", "ADD", scripted.Action{Block: gate, Exit: 1})
	adding := begin(setUp(t.Context(), r, "c1", s.container("c1")))
	letGo := s.arrive(gate)
	waitForTick(t)
	s.hold(map[string]string{"10.9.0.21": "", "10.9.0.22": ""})
	wantNil(t, os.Chmod(filepath.Join(dir, "10.9.0.22"), 0o644))
	letGo()
	if err := await(t, "Setup", adding); err == nil {
		t.Fatal("Setup succeeded")
	}
	wantSame(t, "files", s.held(), []string{"10.9.0.20", "10.9.0.22"})

	// By CleanUp and GC nothing is found either.
	found, err := r.CleanUp(t.Context(), cni.CleanUpTarget{ContainerID: "c1", Network: "net", IfName: "eth0"})
	wantNil(t, err)
	wantSame(t, "found", found, []string(nil))
	report, err := r.GC(t.Context(), cni.GCOptions{KeepNone: true})
	wantNil(t, err)
	wantSame(t, "report", *report, cni.Report{})
	wantSame(t, "files", s.held(), []string{"10.9.0.20", "10.9.0.22"})
}

// TestFault_F39_AnEmptyReservationThatMayBeEithersIsReported: the plugins were
// killed with their runtime, and what is there was made at a time that says
// nothing.
func TestFault_F39_AnEmptyReservationThatMayBeEithersIsReported(t *testing.T) {
	s, r := leasing(t)
	gate := s.gate("add")
	s.on("p", "ADD", scripted.Action{Block: gate, Exit: 1})
	adding := begin(setUp(t.Context(), r, "c1", s.container("c1")))
	letGo := s.arrive(gate)
	s.hold(map[string]string{"10.9.0.20": "", "10.9.0.21": ""})
	dir := filepath.Join(s.path("ipam"), "net")
	later := time.Now().Add(time.Hour) // a clock that was put right
	wantNil(t, os.Chtimes(filepath.Join(dir, "10.9.0.20"), later, later))
	since := s.entered("tester", "c1")
	wantNil(t, os.Chtimes(filepath.Join(dir, "10.9.0.21"), since, since))
	letGo()
	if err := await(t, "Setup", adding); err == nil {
		t.Fatal("Setup succeeded")
	}
	left := func(name string) string {
		return filepath.Join(dir, name) + " is empty: it is left of a plugin that was killed, or it is an administrator's reservation; delete it if it is nobody's"
	}
	for range 2 {
		report, err := r.GC(t.Context(), cni.GCOptions{KeepNone: true})
		wantNil(t, err)
		wantSame(t, "report", *report, cni.Report{Left: []string{left("10.9.0.20"), left("10.9.0.21")}})
	}
	wantSame(t, "files", s.held(), []string{"10.9.0.20", "10.9.0.21"})
	wantNil(t, os.Remove(filepath.Join(dir, "10.9.0.20")))
	s.hold(map[string]string{"10.9.0.21": "c9\r\neth0"}) // for itself now
	report, err := r.GC(t.Context(), cni.GCOptions{KeepNone: true})
	wantNil(t, err)
	wantSame(t, "report", *report, cni.Report{})
}

// entered is when the ledger says that the container was entered.
func (s *stage) entered(owner, id string) time.Time {
	s.t.Helper()
	known, err := record.Open(s.path("state", "embedcni", "attachments")).Ledger(owner).Read()
	wantNil(s.t, err)
	return known[record.Key{ContainerID: record.PluginID(id), Network: "net", IfName: "eth0"}].Since
}

// waitForTick waits until a file that is made has another time than one that was
// made before.
func waitForTick(t *testing.T) {
	t.Helper()
	for began := plainfile.Now(); !plainfile.Now().After(began); {
		runtime.Gosched()
	}
}

// TestFault_F39_GCByTheSpecificationLeavesOthersAddresses: the plugins built in
// collect garbage of 1.1.0 networks beside programs with state directories of
// their own.
func TestFault_F39_GCByTheSpecificationLeavesOthersAddresses(t *testing.T) {
	h := newRealHost(t)
	list := cni.WithConfListBytes(fmt.Appendf(nil, `{"cniVersion": "1.1.0", "name": "net", "plugins": [
		{"type": "bridge", "bridge": "br-gc", "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.23.0.0/24"}]]}}]}`, h.path("ipam")))
	with := func(state string) *cni.Runtime {
		return h.runtime(cni.WithBuiltinPlugins(), cni.WithHostNetNS(h.path("netns", "host")), cni.WithStateDir(h.path(state)), list)
	}
	mine, other := with("state"), with("other")
	wantNil(t, setUp(t.Context(), other, "theirs", h.container("theirs"))())
	wantNil(t, setUp(t.Context(), mine, "c1", h.container("c1"))())
	dir := h.path("ipam", "net")
	write := func(name, content string) { wantNil(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600)) }
	write("10.23.0.50", "")
	write("10.23.0.51", "the printer's")
	names := func() (all []string) {
		entries, err := os.ReadDir(dir)
		wantNil(t, err)
		for _, e := range entries {
			if _, err := netip.ParseAddr(e.Name()); err == nil {
				all = append(all, e.Name())
			}
		}
		return all
	}
	before := names()
	wantSame(t, "files", before, []string{"10.23.0.2", "10.23.0.3", "10.23.0.50", "10.23.0.51"})
	_, err := mine.GC(t.Context(), cni.GCOptions{Keep: []string{"c1"}})
	wantNil(t, err)
	wantSame(t, "files", names(), before)

	// What is gone, and has come back, goes again.
	wantNil(t, mine.Remove(t.Context(), "c1", ""))
	write("10.23.0.3", "c1\r\neth0")
	report, err := mine.GC(t.Context(), cni.GCOptions{KeepNone: true})
	wantNil(t, err)
	wantSame(t, "reclaimed", report.Reclaimed, []string{"address 10.23.0.3 in " + dir})
	wantSame(t, "files", names(), []string{"10.23.0.2", "10.23.0.50", "10.23.0.51"})
	wantNil(t, other.Check(t.Context(), "theirs", h.path("netns", "theirs")))
	wantNil(t, other.Remove(t.Context(), "theirs", ""))
	for _, name := range []string{"10.23.0.50", "10.23.0.51"} {
		wantNil(t, os.Remove(filepath.Join(dir, name)))
	}
}

// TestFault_F39_TheLedgerIsSafeBeforeTheRecordGoes: whatever a power cut leaves,
// one of them names who has an address. No Setup waits for the ledger.
func TestFault_F39_TheLedgerIsSafeBeforeTheRecordGoes(t *testing.T) {
	h, r := earlyHost(t)
	begun, end := make(chan struct{}, 1), make(chan error, 1)
	r.SyncLedgerBy(func(*os.File) error {
		begun <- struct{}{}
		return <-end
	})
	setUpOrFail(t, r, "c1", h.container("c1"))
	if len(begun) > 0 {
		t.Error("Setup syncs the ledger")
	}
	done := begin(func() error { return r.Remove(t.Context(), "c1", "") })
	await(t, "the sync", begun)
	for end := time.Now().Add(patience); h.hasPort(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no DEL was run while the ledger was on its way")
		}
	}
	rec, err := h.records().Load("c1")
	wantNil(t, err)
	if rec == nil {
		t.Error("the record is gone, and the ledger is not on the disk")
	}
	end <- errors.New("no space") // which is no reason to fail
	wantNil(t, await(t, "Remove", done))
	wantSame(t, "on record", recorded(t, r), []string{})
}

// TestFault_F39_RemoveCompactsALongLedger: what is settled is left out, and a
// reservation that has come back keeps its attachment in.
func TestFault_F39_RemoveCompactsALongLedger(t *testing.T) {
	s, r := leasing(t)
	ledger := record.Open(s.path("state", "embedcni", "attachments")).Ledger("tester")
	wantNil(t, setUp(t.Context(), r, "first", s.container("first"))()) // makes the directory
	dir := filepath.Join(s.path("ipam"), "net")
	s.hold(map[string]string{"10.9.0.7": "back\r\neth0"})
	key := func(id string) record.Key {
		return record.Key{ContainerID: record.PluginID(id), Network: "net", IfName: "eth0"}
	}
	for _, id := range []string{"back", "settled"} {
		wantNil(t, ledger.Add(record.Line{Key: key(id), Dirs: []string{dir}}, record.Line{Key: key(id), Gone: true}))
	}
	wantNil(t, ledger.Add(record.Line{Key: key("unknown"), Gone: true})) // an earlier version's
	path, err := filepath.Glob(s.path("state", "embedcni", "attachments", "ledger.*"))
	wantNil(t, err)
	const long = 1 << 20
	size := func() int64 { info, err := os.Stat(path[0]); wantNil(t, err); return info.Size() }
	for size() < long-200 { // the next Setup and Remove make it too long
		wantNil(t, ledger.Add(record.Line{Key: key("lives"), Dirs: []string{dir}}))
	}
	wantNil(t, setUp(t.Context(), r, "c1", s.container("c1"))())
	wantNil(t, r.Remove(t.Context(), "c1", ""))
	if size() > long/2 {
		t.Fatalf("the ledger has %d bytes still", size())
	}
	known, err := ledger.Read()
	wantNil(t, err)
	there := func(id string) bool { _, ok := known[key(id)]; return ok }
	wantSame(t, "back, settled, unknown, lives, first", []bool{there("back"), there("settled"), there("unknown"), there("lives"), there("first")},
		[]bool{true, false, true, true, true})
}

// TestFault_F50_StateThatIsNoFileHoldsUpNobody: a FIFO in the place of the
// ledger or in libcni's cache is an error that names it.
func TestFault_F50_StateThatIsNoFileHoldsUpNobody(t *testing.T) {
	s, r := leasing(t, "c1")
	wantNil(t, r.Remove(t.Context(), "c1", ""))
	ledgers, err := filepath.Glob(s.path("state", "embedcni", "attachments", "ledger.*"))
	wantNil(t, err)
	for _, path := range append(ledgers, s.path("state", "results", "net-c9-eth0")) {
		aside := os.Rename(path, path+".aside")
		wantNil(t, syscall.Mkfifo(path, 0o600))
		done := begin(func() error {
			_, err := r.GC(t.Context(), cni.GCOptions{KeepNone: true})
			return err
		})
		if err := await(t, "GC", done); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("error %v, want one that names %s", err, path)
		}
		wantNil(t, os.Remove(path))
		if aside == nil {
			wantNil(t, os.Rename(path+".aside", path))
		}
	}
}
