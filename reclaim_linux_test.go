package cni_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/scripted"
)

// leasing is a stage with containers on a network whose addresses are
// host-local's, in a directory that the test fills.
func leasing(t *testing.T, ids ...string) (s *stage, r *cni.Runtime) {
	t.Helper()
	s = newStage(t)
	script := s.plugin(scripted.Script{}, "p")
	r = s.runtime(cni.WithOwner("tester"), cni.WithConfListBytes(fmt.Appendf(nil,
		`{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "p", "script": %q, "ipam": {"type": "host-local", "dataDir": %q}}]}`,
		script, s.path("ipam"))))
	for _, id := range ids {
		wantNil(t, setUp(t.Context(), r, id, s.container(id))())
		s.addLink(id, "eth0")
	}
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
