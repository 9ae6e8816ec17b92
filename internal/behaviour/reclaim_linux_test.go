package behaviour_test

import (
	"errors"
	"fmt"
	"io/fs"
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
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/plainfile"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// leasing returns a stage with containers on a network with host-local's
// addresses. The test fills host-local's directory. 10.9.0.2 belongs to the
// first container.
func leasing(t *testing.T, ids ...string) (s *stage, r *cni.Runtime) {
	t.Helper()
	return leasingBy(t, "1.0.0", ids...)
}

func leasingBy(t *testing.T, version string, ids ...string) (s *stage, r *cni.Runtime) {
	t.Helper()
	s = newStage(t)
	script := s.Plugin(scripted.Script{}, "p")
	r = s.Runtime(cni.WithOwner("tester"), cni.WithConfListBytes(fmt.Appendf(nil,
		`{"cniVersion": %q, "name": "net", "plugins": [{"type": "p", "script": %q, "ipam": {"type": "host-local", "dataDir": %q}}]}`,
		version, script, s.Path("ipam"))))
	for i, id := range ids {
		path := s.Container(id)
		result := fmt.Sprintf(`{"cniVersion": %q, "interfaces": [{"name": "eth0", "sandbox": %q}], "ips": [{"interface": 0, "address": "10.9.0.%d/24"}]}`,
			version, path, 2+i)
		s.On("p", "ADD", scripted.Action{Stdout: &result})
		expect.NoError(t, testhost.SetUp(t.Context(), r, id, path)())
		s.AddLink(id, "eth0")
	}
	s.On("p", "ADD", scripted.Action{})
	return s, r
}

// hold makes files as host-local does.
func (s *stage) hold(files map[string]string) {
	s.T.Helper()
	dir := filepath.Join(s.Path("ipam"), "net")
	expect.NoError(s.T, os.MkdirAll(dir, 0o755))
	for name, content := range files {
		expect.NoError(s.T, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
}

// held returns the names of the files.
func (s *stage) held() []string {
	s.T.Helper()
	entries, err := os.ReadDir(filepath.Join(s.Path("ipam"), "net"))
	expect.NoError(s.T, err)
	names := []string{}
	for _, e := range entries {
		if e.Name() != "lock" {
			names = append(names, e.Name())
		}
	}
	return names
}

// entered notes an attachment and its address as earlier versions did.
func (s *stage) entered(id, addr string, gone bool) {
	s.T.Helper()
	line := record.Line{
		Key:  record.Key{ContainerID: record.PluginID(id), Network: "net", IfName: "eth0"},
		Dirs: []string{filepath.Join(s.Path("ipam"), "net")}, Addresses: []netip.Addr{netip.MustParseAddr(addr)}, Time: time.Now(),
	}
	s.Entered("tester", line)
	if gone {
		s.Entered("tester", record.Line{Key: line.Key, Gone: true, Time: time.Now()})
	}
}

// TestGCReclaimsAddressesThatCameBack: earlier versions did not sync the release of an
// address, so that a power cut could undo it after the container's record was gone.
func TestGCReclaimsAddressesThatCameBack(t *testing.T) {
	s, r := leasing(t, "c1", "c2")
	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
	s.entered("c1", "10.9.0.2", true)
	files := map[string]string{
		"10.9.0.2":           "c1\r\neth0",
		"10.9.0.3":           "c2\r\neth0",    // still attached
		"10.9.0.4":           "c1\r\neth9",    // was never recorded
		"10.9.0.5":           "c1-x\r\neth0",  // never recorded either
		"10.9.0.6":           "stranger\r\nx", // another runtime's
		"10.9.0.8":           "c1\r\neth0",    // another program's container with that ID
		"10.9.0.7":           "",
		"last_reserved_ip.0": "10.9.0.7",
	}
	s.hold(files)
	stale := "address 10.9.0.2 in " + filepath.Join(s.Path("ipam"), "net")

	report, err := r.GC(t.Context(), cni.GCOptions{Keep: []string{"c2"}, DryRun: true})
	expect.NoError(t, err)
	expect.Same(t, "dry run", *report, cni.Report{Reclaimed: []string{stale}})
	expect.Same(t, "files", s.held(), slices.Sorted(maps.Keys(files)))

	report, err = s.Runtime(cni.WithOwner("other")).GC(t.Context(), cni.GCOptions{KeepNone: true})
	expect.NoError(t, err)
	expect.Same(t, "another owner's", *report, cni.Report{})

	report, err = r.GC(t.Context(), cni.GCOptions{Keep: []string{"c2"}})
	expect.NoError(t, err)
	expect.Same(t, "report", *report, cni.Report{Adopted: []string{"c2"}, Reclaimed: []string{stale}})
	delete(files, "10.9.0.2")
	expect.Same(t, "files", s.held(), slices.Sorted(maps.Keys(files)))

	// It does not search for it for ever.
	s.hold(map[string]string{"10.9.0.2": "c1\r\neth0"})
	report, err = r.GC(t.Context(), cni.GCOptions{Keep: []string{"c2"}})
	expect.NoError(t, err)
	expect.Same(t, "the next report", *report, cni.Report{Adopted: []string{"c2"}})
	expect.Same(t, "ledgers", s.ledgers(), []string(nil))
}

func (s *stage) ledgers() []string {
	s.T.Helper()
	found, err := filepath.Glob(s.Path("state", "embedcni", "attachments", "ledger.*"))
	expect.NoError(s.T, err)
	return found
}

// TestARemovedAttachmentLeavesTheLedger of an earlier version, so that GC does not look for
// it: another program may use its ID by now. The last one takes the ledger along.
func TestARemovedAttachmentLeavesTheLedger(t *testing.T) {
	s, r := leasing(t, "c1", "c2")
	s.entered("c1", "10.9.0.2", false)
	s.entered("c2", "10.9.0.3", false)
	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
	s.hold(map[string]string{"10.9.0.2": "c1\r\neth0"})
	gc := func(keep ...string) {
		report, err := r.GC(t.Context(), cni.GCOptions{Keep: keep, KeepNone: len(keep) == 0})
		expect.NoError(t, err)
		expect.Same(t, "reclaimed", report.Reclaimed, []string(nil))
	}
	gc("c2")
	expect.Same(t, "ledgers", len(s.ledgers()), 1)
	gc()
	expect.Same(t, "ledgers", s.ledgers(), []string(nil))
	expect.Same(t, "files", s.held(), []string{"10.9.0.2"})
}

// TestGCReclaimsTheAddressesOfALostRecord: an earlier version's ledger names the container,
// and its record disappeared without a Remove.
func TestGCReclaimsTheAddressesOfALostRecord(t *testing.T) {
	s, r := leasing(t, "c1", "c2")
	s.entered("c1", "10.9.0.2", false)
	s.entered("c2", "10.9.0.3", false)
	s.hold(map[string]string{"10.9.0.2": "c1\r\neth0", "10.9.0.3": "c2\r\neth0"})
	for _, id := range []string{"c1", "c2"} {
		s.Unrecord(id)
	}
	report, err := r.GC(t.Context(), cni.GCOptions{KeepNone: true})
	expect.NoError(t, err)
	const why = ` eth0 on network "net": it is on no record, but in libcni's cache, perhaps by another program, and nothing shows whether it lives; ` +
		`call Remove if the container is gone`
	expect.Same(t, "what may be attached, as libcni's cache says", *report, cni.Report{Left: []string{"c1" + why, "c2" + why}})
	expect.NoError(t, os.RemoveAll(s.Path("state", "results")))

	report, err = r.GC(t.Context(), cni.GCOptions{Keep: []string{"c2"}})
	expect.NoError(t, err)
	expect.Same(t, "report", *report, cni.Report{
		Reclaimed: []string{"c1 eth0: address 10.9.0.2 in " + filepath.Join(s.Path("ipam"), "net")},
	})
	expect.Same(t, "files", s.held(), []string{"10.9.0.3"})
	expect.Same(t, "calls", s.Took(), []string{"ADD p c1/eth0", "ADD p c2/eth0"})
}

// TestGCLeavesAPooledContainerWhoseRecordWasLost: the ledger has the ID under which a
// pool made it, and Keep has the caller's. Only the record connects them.
func TestGCLeavesAPooledContainerWhoseRecordWasLost(t *testing.T) {
	s := newStage(t)
	result := `{"cniVersion": "1.0.0", "ips": [{"address": "10.9.0.2/24"}]}`
	s.On("bridge", "ADD", scripted.Action{Stdout: &result})
	r := s.Runtime(cni.WithOwner("tester"), cni.WithConfListBytes(fmt.Appendf(nil,
		`{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "bridge", "script": %q, "ipam": {"type": "host-local", "dataDir": %q}}]}`,
		s.Plugin(s.Scripts["bridge"], "bridge"), s.Path("ipam"))))
	path := pooled(s.Host, r, "warm-1", "c1")
	leave := s.inhabit(path) // otherwise nobody is in it, and it goes
	t.Cleanup(func() { expect.NoError(t, netns.Remove(path)) })
	s.hold(map[string]string{"10.9.0.2": filepath.Base(path) + "\r\neth0"})
	s.entered(filepath.Base(path), "10.9.0.2", false)
	s.Unrecord("c1")
	expect.NoError(t, os.RemoveAll(s.Path("state", "results")))

	for _, dry := range []bool{true, false} {
		report, err := r.GC(t.Context(), cni.GCOptions{Keep: []string{"c1"}, DryRun: dry})
		expect.NoError(t, err)
		expect.Same(t, "left", report.Left, []string{filepath.Base(path) + ` eth0 on network "net": ` +
			`a pool made it, and it may be a container in Keep that is on no record: c1; if it is not, call GC without that one in Keep`})
	}
	expect.Same(t, "of a container to keep", s.held(), []string{"10.9.0.2"})
	leave()
	_, err := r.GC(t.Context(), cni.GCOptions{KeepNone: true})
	expect.NoError(t, err)
	expect.Same(t, "of a container that nobody wants", s.held(), []string{})
}

// TestFault_F39_ExecutablesGetOthersReservationsAsValid: their list includes
// the reservations that no recorded attachment has and that an executable would
// release.
func TestFault_F39_ExecutablesGetOthersReservationsAsValid(t *testing.T) {
	s, r := leasingBy(t, "1.1.0", "c1", "c2")
	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
	s.entered("c1", "10.9.0.2", true)
	s.TakeCalls()
	files := map[string]string{"10.9.0.3": "c2\r\neth0", "10.9.0.6": "stranger\r\nnet1", "10.9.0.2": "c1\r\neth0"}
	s.hold(files)
	report, err := r.GC(t.Context(), cni.GCOptions{Keep: []string{"c2"}})
	expect.NoError(t, err)
	dir := filepath.Join(s.Path("ipam"), "net")
	expect.Same(t, "report", *report, cni.Report{Adopted: []string{"c2"}, Reclaimed: []string{"address 10.9.0.2 in " + dir}})
	expect.Same(t, "valid attachments", valid(t, s.TakeCalls()), []string{"c2/eth0 stranger/net1"})

	for name, content := range map[string]string{"10.9.0.9": "for the printer", "10.9.0.10": "", "10.9.0.11": "c7"} {
		s.hold(map[string]string{name: content})
		report, err = r.GC(t.Context(), cni.GCOptions{Keep: []string{"c2"}})
		expect.NoError(t, err)
		expect.Same(t, "report", *report, cni.Report{Adopted: []string{"c2"}, Left: []string{
			`network "net": plugins were not asked to collect garbage, since an executable host-local would release ` +
				filepath.Join(dir, name) + `, a reservation that names no attachment; delete it if nobody uses it`}})
		expect.Same(t, "calls", s.Took(), []string{})
		expect.NoError(t, os.Remove(filepath.Join(dir, name)))
	}
	expect.Same(t, "files", s.held(), []string{"10.9.0.3", "10.9.0.6"})
}

// TestFault_F39_AnAdministratorsEmptyReservationStays when containers beside it
// are removed. A killed plugin's empty reservation is removed.
func TestFault_F39_AnAdministratorsEmptyReservationStays(t *testing.T) {
	s, r := leasing(t)
	dir := filepath.Join(s.Path("ipam"), "net")
	expect.NoError(t, os.MkdirAll(dir, 0o755))
	s.hold(map[string]string{"10.9.0.20": ""})
	waitForTick(t)
	gate := s.Gate("add")
	s.On("p", "ADD", scripted.Action{Block: gate, Exit: 1})
	adding := testhost.Begin(testhost.SetUp(t.Context(), r, "c1", s.Container("c1")))
	letGo := s.Arrive(gate)
	waitForTick(t)
	s.hold(map[string]string{"10.9.0.21": "", "10.9.0.22": ""})
	expect.NoError(t, os.Chmod(filepath.Join(dir, "10.9.0.22"), 0o644))
	letGo()
	if err := expect.Await(t, "Setup", adding); err == nil {
		t.Fatal("Setup succeeded")
	}
	expect.Same(t, "files", s.held(), []string{"10.9.0.20", "10.9.0.22"})

	// CleanUp and GC find nothing either.
	found, err := r.CleanUp(t.Context(), cni.CleanUpTarget{ContainerID: "c1", Network: "net", IfName: "eth0"})
	expect.NoError(t, err)
	expect.Same(t, "found", found, []string(nil))
	report, err := r.GC(t.Context(), cni.GCOptions{KeepNone: true})
	expect.NoError(t, err)
	expect.Same(t, "report", *report, cni.Report{})
	expect.Same(t, "files", s.held(), []string{"10.9.0.20", "10.9.0.22"})
}

// TestFault_F39_AnEmptyReservationThatMayBeEithersStays: the plugins were killed with
// their runtime, and the file's time does not show its owner.
func TestFault_F39_AnEmptyReservationThatMayBeEithersStays(t *testing.T) {
	s, r := leasing(t)
	gate := s.Gate("add")
	s.On("p", "ADD", scripted.Action{Block: gate, Exit: 1})
	adding := testhost.Begin(testhost.SetUp(t.Context(), r, "c1", s.Container("c1")))
	letGo := s.Arrive(gate)
	s.hold(map[string]string{"10.9.0.20": "", "10.9.0.21": ""})
	dir := filepath.Join(s.Path("ipam"), "net")
	later := time.Now().Add(time.Hour) // after a correction of the clock
	expect.NoError(t, os.Chtimes(filepath.Join(dir, "10.9.0.20"), later, later))
	rec, err := s.Records().Load("c1")
	expect.NoError(t, err)
	since := rec.Attachments[0].Since
	expect.NoError(t, os.Chtimes(filepath.Join(dir, "10.9.0.21"), since, since))
	letGo()
	if err := expect.Await(t, "Setup", adding); err == nil {
		t.Fatal("Setup succeeded")
	}
	report, err := r.GC(t.Context(), cni.GCOptions{KeepNone: true})
	expect.NoError(t, err)
	expect.Same(t, "report", *report, cni.Report{})
	expect.Same(t, "files", s.held(), []string{"10.9.0.20", "10.9.0.21"})
}

// waitForTick waits until a new file gets a later time than an existing one.
func waitForTick(t *testing.T) {
	t.Helper()
	for began := plainfile.Now(); !plainfile.Now().After(began); {
		runtime.Gosched()
	}
}

// TestFault_F39_GCByTheSpecificationLeavesOthersAddresses: the built-in plugins
// run GC for 1.1.0 networks beside programs with other state directories.
func TestFault_F39_GCByTheSpecificationLeavesOthersAddresses(t *testing.T) {
	testhost.LeavesNothingRunning(t)
	h := newRealHost(t)
	list := cni.WithConfListBytes(fmt.Appendf(nil, `{"cniVersion": "1.1.0", "name": "net", "plugins": [
		{"type": "bridge", "bridge": "br-gc", "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.23.0.0/24"}]]}}]}`, h.Path("ipam")))
	with := func(state string) *cni.Runtime {
		return h.Runtime(cni.WithBuiltinPlugins(), cni.WithHostNetNS(h.Path("netns", "host")), cni.WithStateDir(h.Path(state)), list)
	}
	mine, other := with("state"), with("other")
	expect.NoError(t, testhost.SetUp(t.Context(), other, "theirs", h.Container("theirs"))())
	expect.NoError(t, testhost.SetUp(t.Context(), mine, "c1", h.Container("c1"))())
	dir := h.Path("ipam", "net")
	write := func(name, content string) {
		expect.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	write("10.23.0.50", "")
	write("10.23.0.51", "the printer's")
	names := func() (all []string) {
		entries, err := os.ReadDir(dir)
		expect.NoError(t, err)
		for _, e := range entries {
			if _, err := netip.ParseAddr(e.Name()); err == nil {
				all = append(all, e.Name())
			}
		}
		return all
	}
	before := names()
	expect.Same(t, "files", before, []string{"10.23.0.2", "10.23.0.3", "10.23.0.50", "10.23.0.51"})
	_, err := mine.GC(t.Context(), cni.GCOptions{Keep: []string{"c1"}})
	expect.NoError(t, err)
	expect.Same(t, "files", names(), before)

	// A reservation of an earlier version that has come back is removed again.
	expect.NoError(t, mine.Remove(t.Context(), "c1", ""))
	write("10.23.0.3", "c1\r\neth0")
	h.Entered(filepath.Base(os.Args[0]), record.Line{
		Key: record.Key{ContainerID: "c1", Network: "net", IfName: "eth0"}, Gone: true, Dirs: []string{dir},
		Addresses: []netip.Addr{netip.MustParseAddr("10.23.0.3")}, Time: time.Now(),
	})
	report, err := mine.GC(t.Context(), cni.GCOptions{KeepNone: true})
	expect.NoError(t, err)
	expect.Same(t, "reclaimed", report.Reclaimed, []string{"address 10.23.0.3 in " + dir})
	expect.Same(t, "files", names(), []string{"10.23.0.2", "10.23.0.50", "10.23.0.51"})
	expect.NoError(t, other.Check(t.Context(), "theirs", h.Path("netns", "theirs")))
	expect.NoError(t, other.Remove(t.Context(), "theirs", ""))
	for _, name := range []string{"10.23.0.50", "10.23.0.51"} {
		expect.NoError(t, os.Remove(filepath.Join(dir, name)))
	}
}

// TestFault_F50_StateThatIsNoFileBlocksNobody: if the ledger or an entry of
// libcni's cache is a FIFO, the error names it.
func TestFault_F50_StateThatIsNoFileBlocksNobody(t *testing.T) {
	s, r := leasing(t, "c1")
	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
	for _, path := range []string{s.Entered("tester"), s.Path("state", "results", "net-c9-eth0")} {
		aside := os.Rename(path, path+".aside")
		expect.NoError(t, syscall.Mkfifo(path, 0o600))
		done := testhost.Begin(func() error {
			_, err := r.GC(t.Context(), cni.GCOptions{KeepNone: true})
			return err
		})
		if err := expect.Await(t, "GC", done); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("error %v, want one that names %s", err, path)
		}
		expect.NoError(t, os.Remove(path))
		if aside == nil {
			expect.NoError(t, os.Rename(path+".aside", path))
		}
	}
}

// TestFilesOfEarlierVersionsAreDeleted: marks of first ADDs, the copy of libcni's cache, and
// second names of records with ports.
func TestFilesOfEarlierVersionsAreDeleted(t *testing.T) {
	for name, tidy := range map[string]func(r *cni.Runtime) error{
		"GC": func(r *cni.Runtime) error {
			_, err := r.GC(t.Context(), cni.GCOptions{Keep: []string{"c1"}})
			return err
		},
		"Recover": func(r *cni.Runtime) error {
			_, err := r.Recover(t.Context())
			return err
		},
	} {
		s, r := leasing(t, "c1")
		own := func(elements ...string) string { return s.Path(append([]string{"state", "embedcni"}, elements...)...) }
		links := own("attachments", "ports")
		expect.NoError(t, os.Mkdir(own("networks"), 0o700), os.Mkdir(links, 0o700))
		expect.NoError(t, os.Link(s.RecordFile("c1")+".json", filepath.Join(links, filepath.Base(s.RecordFile("c1"))+".t80")))
		for _, path := range []string{own("networks", "0a1b"), own("networks", "0a1b.new"), own("cachedports")} {
			expect.NoError(t, os.WriteFile(path, []byte("x"), 0o600))
		}
		expect.NoError(t, tidy(r))
		for _, path := range []string{own("networks"), own("cachedports"), links} {
			if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s leaves %s: %v", name, path, err)
			}
		}
		expect.Same(t, "on record", testhost.Recorded(t, r), []string{"c1/eth0 attached"})
	}
}
