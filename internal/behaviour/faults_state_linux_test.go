package behaviour_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

// smallState puts the state directory on a file system of 256 KiB.
func smallState(t *testing.T) (s *stage, r *cni.Runtime, log *testhost.Log) {
	t.Helper()
	s, log = newStage(t), &testhost.Log{}
	dir := s.Path("state")
	expect.NoError(t, os.MkdirAll(dir, 0o755))
	expect.NoError(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"))
	t.Cleanup(func() {
		s.makeWritable()
		s.Unpin()
		expect.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) // a Runtime keeps its liveness file open
	})
	return s, s.Runtime(log.Logger(), cni.WithConfListBytes(s.Network("net", "1.0.0", "p"))), log
}

func (s *stage) makeReadOnly() {
	s.T.Helper()
	expect.NoError(s.T, unix.Mount("", s.Path("state"), "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
}

func (s *stage) makeWritable() {
	s.T.Helper()
	expect.NoError(s.T, unix.Mount("", s.Path("state"), "", unix.MS_REMOUNT, ""))
}

func (s *stage) fill() {
	s.T.Helper()
	err := os.WriteFile(s.Path("state", "ballast"), make([]byte, 1<<20), 0o600)
	if !errors.Is(err, syscall.ENOSPC) {
		s.T.Fatalf("error %v, want a full disk", err)
	}
}

func TestFault_F21_SetupOnAReadOnlyStateDirectoryRunsNothing(t *testing.T) {
	s, r, _ := smallState(t)
	path := s.Container("c1")
	s.makeReadOnly()
	expect.Is(t, errOf(r.Setup(t.Context(), "c1", path)), syscall.EROFS)
	expect.Is(t, r.Check(t.Context(), "c1", path), syscall.EROFS)
	expect.Same(t, "calls", s.Took(), []string{})
}

func TestFault_F21_SetupOnAFullStateDirectoryRunsNothing(t *testing.T) {
	s, r, _ := smallState(t)
	path := s.Container("c1")
	testhost.MustSetUp(t, r, "warm", s.Container("warm"))
	s.TakeCalls()
	s.fill()
	expect.Is(t, errOf(r.Setup(t.Context(), "c1", path)), syscall.ENOSPC)
	expect.Same(t, "calls", s.Took(), []string{})
	expect.Same(t, "cache", s.Cached(), []string{"net-warm-eth0"})
	expect.NoError(t, r.Remove(t.Context(), "warm", ""))
	expect.NoError(t, os.Remove(s.Path("state", "ballast")))
	testhost.MustSetUp(t, r, "c1", path)
}

func TestFault_F21_RemoveOnAReadOnlyStateDirectoryGoesOnAndLogs(t *testing.T) {
	s, r, log := smallState(t)
	path := s.Container("c1")
	testhost.MustSetUp(t, r, "c1", path, cni.WithArgs("K", "v"))
	s.TakeCalls()
	s.makeReadOnly()
	expect.NoError(t, r.Remove(t.Context(), "c1", path))
	calls := s.TakeCalls()
	expect.Same(t, "calls", testhost.Rendered(calls), []string{"DEL p c1/eth0"})
	expect.Same(t, "arguments", calls[0].Args, "K=v")
	expect.Same(t, "warnings", log.Lines("WARN"), []string{
		fmt.Sprintf(`msg="removing without a lock between processes" container=c1 `+
			`error="lock \"barrier\" and 1 more: lock file unavailable: open %s: read-only file system"`, s.Path("state", "embedcni", "locks")),
		fmt.Sprintf(`msg="note a removal in the record" container=c1 error="record of container c1: open %s.json: read-only file system"`,
			s.RecordFile("c1")),
	})
	// The next one deletes the leftover file.
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{"c1/eth0 attached"})
	s.makeWritable()
	expect.NoError(t, r.Remove(t.Context(), "c1", path))
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{})
}

// spoiled are contents that libcni never writes to its cache.
var spoiled = map[string]string{
	"empty":      "",
	"cut off":    `{"kind":"cniCacheV1","containerId":"c1","ifName":"eth0","networkN`,
	"garbage":    "\x00\x01\x02",
	"wrong kind": `{"kind":"other"}`,
	"null":       `null`,
}

// spoil sets c1 up without the interface and spoils its cache, which is its
// only trace.
func spoil(t *testing.T, content string) (s *stage, r *cni.Runtime, log *testhost.Log, path string) {
	t.Helper()
	s, log = newStage(t), &testhost.Log{}
	r = s.Runtime(log.Logger(), cni.WithConfListBytes(s.Network("net", "1.0.0", "p")))
	path = s.Container("c1")
	testhost.MustSetUp(t, r, "c1", path)
	s.TakeCalls()
	s.Unrecord("c1")
	s.Write("state/results/net-c1-eth0", content)
	return s, r, log, path
}

// wantWarned checks that the log names the unreadable file.
func wantWarned(t *testing.T, what string, log *testhost.Log) {
	t.Helper()
	const want = `msg="cached attachment cannot be read" container=c1 network=net error="`
	for _, line := range log.Lines("WARN") {
		if strings.HasPrefix(line, want) {
			return
		}
	}
	t.Errorf("%s: warnings %q, want one that begins with %q", what, log.Lines("WARN"), want)
}

func TestFault_F21_SetupOverACacheThatCannotBeReadCleansFirst(t *testing.T) {
	for what, content := range spoiled {
		s, r, log, path := spoil(t, content)
		testhost.MustSetUp(t, r, "c1", path)
		calls := s.TakeCalls()
		expect.Same(t, what, testhost.Rendered(calls), []string{"DEL p c1/eth0", "ADD p c1/eth0"})
		expect.Same(t, what+": CNI_NETNS at DEL", calls[0].NetNS, path)
		wantWarned(t, what, log)
	}
}

func TestFault_F21_ALivingAttachmentIsSafeWhenItsCacheCannotBeRead(t *testing.T) {
	s, r, _, path := spoil(t, "")
	s.AddLink("c1", "eth0")
	expect.Is(t, testhost.SetUp(t.Context(), r, "c1", path)(), cni.ErrAlreadyAttached)
	expect.Same(t, "calls", s.Took(), []string{})
}

func TestFault_F21_RemoveAndCheckOverACacheThatCannotBeRead(t *testing.T) {
	for what, content := range spoiled {
		s, r, log, path := spoil(t, content)
		expect.Is(t, r.Check(t.Context(), "c1", path), cni.ErrNotAttached)
		expect.Same(t, what, s.Took(), []string{})
		expect.NoError(t, r.Remove(t.Context(), "c1", path))
		expect.Same(t, what, s.Took(), []string{"DEL p c1/eth0"})
		expect.Same(t, what+": cache", s.Cached(), []string{})
		wantWarned(t, what, log)
	}
}

func TestFault_F21_ACachedResultThatIsNoneKeepsNoPluginFromBeingAsked(t *testing.T) {
	for what, result := range map[string]string{
		"null interface":  `{"cniVersion":"1.0.0","interfaces":[null],"ips":[{"address":"10.0.0.1/24","interface":7}]}`,
		"null address":    `{"cniVersion":"1.0.0","ips":[null]}`,
		"null route":      `{"cniVersion":"1.0.0","routes":[null]}`,
		"older, null":     `{"cniVersion":"0.3.1","ips":[null],"routes":[null]}`,
		"newer, null":     `{"cniVersion":"1.1.0","ips":[null],"interfaces":[null]}`,
		"unknown version": `{"cniVersion":"9.9.9"}`,
		"no object":       `7`,
	} {
		s, r, _, path := spoil(t, fmt.Sprintf(
			`{"kind":"cniCacheV1","containerId":"c1","ifName":"eth0","networkName":"net","netns":"/x","config":"e30=","result":%s}`, result))
		if err := r.Remove(t.Context(), "c1", path); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		expect.Same(t, what, s.Took(), []string{"DEL p c1/eth0"})
		expect.Same(t, what+": cache", s.Cached(), []string{})
	}
}

func TestDuty_R32_ASpoiledCacheDoesNotMatterWhereThereIsARecord(t *testing.T) {
	for what, content := range spoiled {
		s, log := newStage(t), &testhost.Log{}
		r := s.Runtime(log.Logger(), cni.WithConfListBytes(s.Network("net", "1.0.0", "p")))
		path := s.Container("c1")
		testhost.MustSetUp(t, r, "c1", path)
		s.AddLink("c1", "eth0")
		s.TakeCalls()
		s.Write("state/results/net-c1-eth0", content)
		expect.Is(t, testhost.SetUp(t.Context(), r, "c1", path)(), cni.ErrAlreadyAttached)
		expect.NoError(t, r.Check(t.Context(), "c1", path))
		expect.NoError(t, r.Remove(t.Context(), "c1", path))
		expect.Same(t, what, prevResults(t, s.TakeCalls()), []string{"CHECK p 10.9.0.2/24", "DEL p 10.9.0.2/24"})
		expect.Same(t, what+": warnings", log.Lines("WARN"), []string{})
		expect.Same(t, what+": cache", s.Cached(), []string{})
	}
}
