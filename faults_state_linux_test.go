package cni_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
)

// smallState makes the state directory a file system of its own, of 256 KiB.
func smallState(t *testing.T) (s *stage, r *cni.Runtime, log *logged) {
	t.Helper()
	s, log = newStage(t), &logged{}
	dir := s.path("state")
	wantNil(t, os.MkdirAll(dir, 0o755))
	wantNil(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"))
	t.Cleanup(func() {
		s.makeWritable()
		s.unpin()
		wantNil(t, unix.Unmount(dir, unix.MNT_DETACH)) // a Runtime keeps the file open by which it lives
	})
	return s, s.runtime(log.logger(), cni.WithConfListBytes(s.network("net", "1.0.0", "p"))), log
}

func (s *stage) makeReadOnly() {
	s.t.Helper()
	wantNil(s.t, unix.Mount("", s.path("state"), "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
}

func (s *stage) makeWritable() {
	s.t.Helper()
	wantNil(s.t, unix.Mount("", s.path("state"), "", unix.MS_REMOUNT, ""))
}

func (s *stage) fill() {
	s.t.Helper()
	err := os.WriteFile(s.path("state", "ballast"), make([]byte, 1<<20), 0o600)
	if !errors.Is(err, syscall.ENOSPC) {
		s.t.Fatalf("error %v, want a full disk", err)
	}
}

func TestFault_F21_SetupOnAReadOnlyStateDirectoryRunsNothing(t *testing.T) {
	s, r, _ := smallState(t)
	path := s.container("c1")
	s.makeReadOnly()
	_, err := r.Setup(t.Context(), "c1", path)
	wantIs(t, err, syscall.EROFS)
	wantIs(t, r.Check(t.Context(), "c1", path), syscall.EROFS)
	wantSame(t, "calls", s.took(), []string{})
}

func TestFault_F21_SetupOnAFullStateDirectoryRunsNothing(t *testing.T) {
	s, r, _ := smallState(t)
	path := s.container("c1")
	wantNil(t, setUp(t.Context(), r, "warm", s.container("warm"))())
	s.takeCalls()
	s.fill()
	_, err := r.Setup(t.Context(), "c1", path)
	wantIs(t, err, syscall.ENOSPC)
	wantSame(t, "calls", s.took(), []string{})
	wantSame(t, "cache", s.cached(), []string{"net-warm-eth0"})
	wantNil(t, r.Remove(t.Context(), "warm", ""))
	wantNil(t, os.Remove(s.path("state", "ballast")))
	wantNil(t, setUp(t.Context(), r, "c1", path)())
}

func TestFault_F21_RemoveOnAReadOnlyStateDirectoryGoesOnAndLogs(t *testing.T) {
	s, r, log := smallState(t)
	path := s.container("c1")
	wantNil(t, setUp(t.Context(), r, "c1", path, cni.WithArgs("K", "v"))())
	s.takeCalls()
	s.makeReadOnly()
	wantNil(t, r.Remove(t.Context(), "c1", path))
	calls := s.takeCalls()
	wantSame(t, "calls", rendered(calls), []string{"DEL p c1/eth0"})
	wantSame(t, "arguments", calls[0].Args, "K=v")
	ledgers, err := filepath.Glob(s.path("state", "embedcni", "attachments", "ledger.*"))
	if len(ledgers) != 1 || err != nil {
		t.Fatalf("ledgers %q, %v, want one", ledgers, err)
	}
	wantSame(t, "warnings", log.lines("WARN"), []string{
		fmt.Sprintf(`msg="removing without a lock between processes" container=c1 `+
			`error="lock \"barrier\" and 1 more: lock file unavailable: open %s: read-only file system"`, s.path("state", "embedcni", "locks")),
		fmt.Sprintf(`msg="note a removal in the record" container=c1 error="record of container c1: open %s.json: read-only file system"`,
			s.recordFile("c1")),
		fmt.Sprintf(`msg="note in the ledger what GC can go by" container=c1 error="ledger of attachments: open %s: read-only file system"`,
			ledgers[0]),
	})
	// What could not be deleted is deleted by the next one.
	wantSame(t, "on record", recorded(t, r), []string{"c1/eth0 attached"})
	s.makeWritable()
	wantNil(t, r.Remove(t.Context(), "c1", path))
	wantSame(t, "on record", recorded(t, r), []string{})
}

// spoiled are contents of libcni's cache that are not what libcni wrote.
var spoiled = map[string]string{
	"empty":      "",
	"cut off":    `{"kind":"cniCacheV1","containerId":"c1","ifName":"eth0","networkN`,
	"garbage":    "\x00\x01\x02",
	"wrong kind": `{"kind":"other"}`,
	"null":       `null`,
}

// spoil sets c1 up, without the interface, and spoils its cache, which is all
// there is of it.
func spoil(t *testing.T, content string) (s *stage, r *cni.Runtime, log *logged, path string) {
	t.Helper()
	s, log = newStage(t), &logged{}
	r = s.runtime(log.logger(), cni.WithConfListBytes(s.network("net", "1.0.0", "p")))
	path = s.container("c1")
	wantNil(t, setUp(t.Context(), r, "c1", path)())
	s.takeCalls()
	s.unrecord("c1")
	s.write("state/results/net-c1-eth0", content)
	return s, r, log, path
}

// wantWarned wants the unreadable file to be in the log.
func wantWarned(t *testing.T, what string, log *logged) {
	t.Helper()
	const want = `msg="cached attachment cannot be read" container=c1 network=net error="`
	for _, line := range log.lines("WARN") {
		if strings.HasPrefix(line, want) {
			return
		}
	}
	t.Errorf("%s: warnings %q, want one that begins with %q", what, log.lines("WARN"), want)
}

func TestFault_F21_SetupOverACacheThatCannotBeReadCleansFirst(t *testing.T) {
	for what, content := range spoiled {
		s, r, log, path := spoil(t, content)
		wantNil(t, setUp(t.Context(), r, "c1", path)())
		calls := s.takeCalls()
		wantSame(t, what, rendered(calls), []string{"DEL p c1/eth0", "ADD p c1/eth0"})
		wantSame(t, what+": CNI_NETNS at DEL", calls[0].NetNS, path)
		wantWarned(t, what, log)
	}
}

func TestFault_F21_ALivingAttachmentIsSafeWhenItsCacheCannotBeRead(t *testing.T) {
	s, r, _, path := spoil(t, "")
	s.addLink("c1", "eth0")
	wantIs(t, setUp(t.Context(), r, "c1", path)(), cni.ErrAlreadyAttached)
	wantSame(t, "calls", s.took(), []string{})
}

func TestFault_F21_RemoveAndCheckOverACacheThatCannotBeRead(t *testing.T) {
	for what, content := range spoiled {
		s, r, log, path := spoil(t, content)
		wantIs(t, r.Check(t.Context(), "c1", path), cni.ErrNotAttached)
		wantSame(t, what, s.took(), []string{})
		wantNil(t, r.Remove(t.Context(), "c1", path))
		wantSame(t, what, s.took(), []string{"DEL p c1/eth0"})
		wantSame(t, what+": cache", s.cached(), []string{})
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
		wantSame(t, what, s.took(), []string{"DEL p c1/eth0"})
		wantSame(t, what+": cache", s.cached(), []string{})
	}
}

func TestDuty_R32_ASpoiledCacheDoesNotMatterWhereThereIsARecord(t *testing.T) {
	for what, content := range spoiled {
		s, log := newStage(t), &logged{}
		r := s.runtime(log.logger(), cni.WithConfListBytes(s.network("net", "1.0.0", "p")))
		path := s.container("c1")
		wantNil(t, setUp(t.Context(), r, "c1", path)())
		s.addLink("c1", "eth0")
		s.takeCalls()
		s.write("state/results/net-c1-eth0", content)
		wantIs(t, setUp(t.Context(), r, "c1", path)(), cni.ErrAlreadyAttached)
		wantNil(t, r.Check(t.Context(), "c1", path))
		wantNil(t, r.Remove(t.Context(), "c1", path))
		wantSame(t, what, prevResults(t, s.takeCalls()), []string{"CHECK p 10.9.0.2/24", "DEL p 10.9.0.2/24"})
		wantSame(t, what+": warnings", log.lines("WARN"), []string{})
		wantSame(t, what+": cache", s.cached(), []string{})
	}
}
