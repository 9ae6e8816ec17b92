package behaviour_test

import (
	"fmt"
	"maps"
	"net"
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
	"github.com/embedcni/cni/internal/engine/leftovers"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/plainfile"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/store/record"
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
		testhost.MustSetUp(t, r, id, path)
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
	entries := expect.Value(os.ReadDir(filepath.Join(s.Path("ipam"), "net")))(s.T)
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
	line := leftovers.Line{
		Key:  leftovers.Key{ContainerID: record.PluginID(id), Network: "net", IfName: "eth0"},
		Dirs: []string{filepath.Join(s.Path("ipam"), "net")}, Addresses: []netip.Addr{netip.MustParseAddr(addr)}, Time: time.Now(),
	}
	s.Entered("tester", line)
	if gone {
		s.Entered("tester", leftovers.Line{Key: line.Key, Gone: true, Time: time.Now()})
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

	report := expect.Value(r.GC(t.Context(), cni.GCOptions{Keep: []string{"c2"}, DryRun: true}))(t)
	expect.Same(t, "dry run", *report, cni.Report{Reclaimed: []string{stale}})
	expect.Same(t, "files", s.held(), slices.Sorted(maps.Keys(files)))

	report = expect.Value(s.Runtime(cni.WithOwner("other")).GC(t.Context(), cni.GCOptions{KeepNone: true}))(t)
	expect.Same(t, "another owner's", *report, cni.Report{})

	report = expect.Value(r.GC(t.Context(), cni.GCOptions{Keep: []string{"c2"}}))(t)
	expect.Same(t, "report", *report, cni.Report{Adopted: []string{"c2"}, Reclaimed: []string{stale}})
	delete(files, "10.9.0.2")
	expect.Same(t, "files", s.held(), slices.Sorted(maps.Keys(files)))

	// It does not search for it for ever.
	s.hold(map[string]string{"10.9.0.2": "c1\r\neth0"})
	report = expect.Value(r.GC(t.Context(), cni.GCOptions{Keep: []string{"c2"}}))(t)
	expect.Same(t, "the next report", *report, cni.Report{Adopted: []string{"c2"}})
	expect.Same(t, "ledgers", s.ledgers(), []string(nil))
}

func (s *stage) ledgers() []string {
	s.T.Helper()
	return expect.Value(filepath.Glob(s.Path("state", "embedcni", "attachments", "ledger.*")))(s.T)
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
	report := expect.Value(r.GC(t.Context(), cni.GCOptions{KeepNone: true}))(t)
	const why = ` eth0 on network "net": it is on no record, but in libcni's cache, perhaps by another program, and nothing shows whether it lives; ` +
		`call Remove if the container is gone`
	expect.Same(t, "what may be attached, as libcni's cache says", *report, cni.Report{Left: []string{"c1" + why, "c2" + why}})
	expect.NoError(t, os.RemoveAll(s.Path("state", "results")))

	report = expect.Value(r.GC(t.Context(), cni.GCOptions{Keep: []string{"c2"}}))(t)
	expect.Same(t, "report", *report, cni.Report{
		Reclaimed: []string{"c1 eth0: address 10.9.0.2 in " + filepath.Join(s.Path("ipam"), "net")},
	})
	expect.Same(t, "files", s.held(), []string{"10.9.0.3"})
	expect.Same(t, "calls", s.Took(), []string{"ADD p c1/eth0", "ADD p c2/eth0"})
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
	report := expect.Value(r.GC(t.Context(), cni.GCOptions{Keep: []string{"c2"}}))(t)
	dir := filepath.Join(s.Path("ipam"), "net")
	expect.Same(t, "report", *report, cni.Report{Adopted: []string{"c2"}, Reclaimed: []string{"address 10.9.0.2 in " + dir}})
	expect.Same(t, "valid attachments", valid(t, s.TakeCalls()), []string{"c2/eth0 stranger/net1"})

	for name, content := range map[string]string{"10.9.0.9": "for the printer", "10.9.0.10": "", "10.9.0.11": "c7"} {
		s.hold(map[string]string{name: content})
		report = expect.Value(r.GC(t.Context(), cni.GCOptions{Keep: []string{"c2"}}))(t)
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
	fails(t, expect.Await(t, "Setup", adding))
	expect.Same(t, "files", s.held(), []string{"10.9.0.20", "10.9.0.22"})

	// CleanUp and GC find nothing either.
	found := expect.Value(r.CleanUp(t.Context(), cni.CleanUpTarget{ContainerID: "c1", Network: "net", IfName: "eth0"}))(t)
	expect.Same(t, "found", found, []string(nil))
	expect.Same(t, "report", *expect.Value(r.GC(t.Context(), cni.GCOptions{KeepNone: true}))(t), cni.Report{})
	expect.Same(t, "files", s.held(), []string{"10.9.0.20", "10.9.0.22"})
}

// waitForTick waits until a new file gets a later time than an existing one.
func waitForTick(t *testing.T) {
	t.Helper()
	for began := plainfile.Now(); !plainfile.Now().After(began); {
		runtime.Gosched()
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
		done := testhost.Begin(func() error { return errOf(r.GC(t.Context(), cni.GCOptions{KeepNone: true})) })
		fails(t, expect.Await(t, "GC", done), path)
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
		"GC":      func(r *cni.Runtime) error { return errOf(r.GC(t.Context(), cni.GCOptions{Keep: []string{"c1"}})) },
		"Recover": func(r *cni.Runtime) error { return errOf(r.Recover(t.Context())) },
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
			expect.Same(t, name+" leaves "+path, expect.Exists(t, path), false)
		}
		expect.Same(t, "on record", testhost.Recorded(t, r), []string{"c1/eth0 attached"})
	}
}

// lostRecords runs a test on a host with the network podnet, by built-in plugins and by
// executables.
func lostRecords(t *testing.T, test func(t *testing.T, h *realHost, r func(opts ...cni.Opt) *cni.Runtime)) {
	for _, builtIn := range []bool{true, false} {
		t.Run(fmt.Sprintf("built in %v", builtIn), func(t *testing.T) {
			h := newRealHost(t)
			everything := everything()
			conf := cni.WithConfListBytes(everything.Conf("podnet", "1.0.0", h.Path("ipam")))
			test(t, h, func(opts ...cni.Opt) *cni.Runtime {
				opts = append([]cni.Opt{conf, cni.WithOwner("tester")}, opts...)
				if builtIn {
					return h.Runtime(append(opts, cni.WithBuiltinPlugins())...)
				}
				return h.Real(opts...)
			})
		})
	}
}

// enteredPod notes c1 on podnet as earlier versions did.
func (h *realHost) enteredPod() {
	h.T.Helper()
	h.Entered("tester", leftovers.Line{
		Key:  leftovers.Key{ContainerID: "c1", Network: "podnet", IfName: "eth0"},
		Dirs: []string{h.Path("ipam", "podnet")}, Time: time.Now(),
	})
}

// TestFault_F73_GCReclaimsALostRecordThatLibcnisCacheNames, and an earlier version's ledger:
// the container is dead, so nobody else can have attached it.
func TestFault_F73_GCReclaimsALostRecordThatLibcnisCacheNames(t *testing.T) {
	reclaimed := 0
	lostRecords(t, func(t *testing.T, h *realHost, new func(...cni.Opt) *cni.Runtime) {
		r := new()
		before, links := h.Audit(), h.links()
		dies(t, r, "c1", onePort)
		h.enteredPod()
		h.Unrecord("c1")
		h.waitForLinks(links)
		for _, dry := range []bool{true, false} {
			report, err := r.GC(t.Context(), cni.GCOptions{KeepNone: true, DryRun: dry})
			expect.NoError(t, err, report.Err())
			expect.Same(t, "left", report.Left, nil)
			expect.Contains(t, fmt.Sprint("reclaimed, dry ", dry), strings.Join(report.Reclaimed, "\n"), "address 10.77.0.2", "address fd77::2", "iptables", "cached result")
			if !dry {
				reclaimed += len(report.Reclaimed)
			}
		}
		h.WantClean(before)
	})
	t.Logf("F73: %d leftovers reclaimed", reclaimed)
}

// TestFault_F73_GCNamesALostRecordThatOnlyLibcnisCacheNames: whose the container was is not
// known, so it stays until somebody calls Remove. One to keep is not named, nor is one that
// lives.
func TestFault_F73_GCNamesALostRecordThatOnlyLibcnisCacheNames(t *testing.T) {
	lostRecords(t, func(t *testing.T, h *realHost, new func(...cni.Opt) *cni.Runtime) {
		r := new()
		before, links := h.Audit(), h.links()
		dies(t, r, "c1", onePort)
		h.Unrecord("c1")
		h.waitForLinks(links)
		leaves := func(o cni.GCOptions, want ...string) {
			t.Helper()
			report, err := r.GC(t.Context(), o)
			expect.NoError(t, err, report.Err())
			expect.Same(t, "report", *report, cni.Report{Left: want})
		}
		line := `c1 eth0 on network "podnet": it is on no record, but in libcni's cache, perhaps by another program, and its interfaces are gone; ` +
			`call Remove if the container is gone`
		there := h.Audit()
		for _, dry := range []bool{true, false} {
			leaves(cni.GCOptions{KeepNone: true, DryRun: dry}, line)
			leaves(cni.GCOptions{Keep: []string{"c1"}, DryRun: dry})
		}
		left, gone := h.Left(there)
		expect.Unchanged(t, "host", left, gone)
		expect.NoError(t, r.Remove(t.Context(), "c1", ""))
		leaves(cni.GCOptions{KeepNone: true})
		h.WantClean(before)
	})
}

// TestFault_F73_GCLeavesALostRecordsContainerThatLives, and says so: another program may
// have attached it since. If the container once left nothing behind, one has.
func TestFault_F73_GCLeavesALostRecordsContainerThatLives(t *testing.T) {
	lostRecords(t, func(t *testing.T, h *realHost, new func(...cni.Opt) *cni.Runtime) {
		r, others := new(), new(cni.WithOwner("another program"))
		path := h.Container("c1")
		unchanged := func(want []string) {
			t.Helper()
			h.Unrecord("c1")
			for _, at := range []string{path, h.Path("netns", "moved")} { // the cache has the first
				before := h.Audit()
				report, err := r.GC(t.Context(), cni.GCOptions{KeepNone: true})
				expect.NoError(t, err, report.Err())
				expect.Same(t, "reclaimed", report.Reclaimed, nil)
				expect.Same(t, "left", report.Left, want)
				left, gone := h.Left(before)
				expect.Unchanged(t, "host", left, gone)
				h.Inside(at, func() error { return errOf(net.InterfaceByName("eth0")) })
				if at == path {
					h.moveNetNS(path, h.Path("netns", "moved"))
				}
			}
			h.moveNetNS(h.Path("netns", "moved"), path)
		}
		expect.NoError(t, expect.Err(r.Setup(t.Context(), "c1", path, onePort)), r.Remove(t.Context(), "c1", path))
		testhost.MustSetUp(t, others, "c1", path, onePort)
		unchanged(nil)
		expect.NoError(t, others.Remove(t.Context(), "c1", path))

		testhost.MustSetUp(t, r, "c1", path, onePort)
		h.enteredPod()
		unchanged([]string{`c1 eth0 on network "podnet": it is on no record, but in libcni's cache, perhaps by another program, and it lives; ` +
			`call Remove if the container is gone`})
		expect.NoError(t, r.Remove(t.Context(), "c1", path))
	})
}

// moveNetNS mounts a namespace at another path.
func (h *realHost) moveNetNS(from, to string) {
	h.T.Helper()
	ns := expect.Value(netns.Open(from))(h.T)
	expect.NoError(h.T, netns.Pin(ns, to), ns.Close(), netns.Remove(from))
}
