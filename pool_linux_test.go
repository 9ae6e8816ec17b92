package cni_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/netns"
)

// pooled is a stage with a network whose first plugin needs nothing of the
// caller and whose second wants ports, and a pool.
func pooled(t *testing.T, size int) (s *stage, r *cni.Runtime, p *cni.Pool) {
	t.Helper()
	s = newStage(t)
	r = s.runtime(cni.WithOwner("tester"), s.poolNetwork("net"))
	p, err := r.NewPool(cni.PoolOptions{Size: size})
	wantNil(t, err)
	t.Cleanup(func() { wantNil(t, p.Close()) })
	s.wantFull(r, p, size)
	return s, r, p
}

// wantFull waits until as many containers are ready as there can be, and no other
// is on its way out, and returns their IDs.
func (h *host) wantFull(r *cni.Runtime, p *cni.Pool, size int) (ids []string) {
	h.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		full := p.Ready() == size
		all, err := r.Attachments()
		wantNil(h.t, err)
		ids = nil
		for _, a := range all {
			if strings.HasPrefix(a.ContainerID, "warm-") && !slices.Contains(ids, a.ContainerID) {
				ids = append(ids, a.ContainerID)
				full = full && a.State == cni.Ready
			}
		}
		if full && len(ids) == size {
			return ids
		}
		if time.Now().After(end) {
			h.t.Fatalf("%d containers are ready, and on record: %q, want %d", p.Ready(), ids, size)
		}
	}
}

func (s *stage) poolNetwork(name string) cni.Opt {
	s.t.Helper()
	return cni.WithConfListBytes(fmt.Appendf(nil, `{"cniVersion": "1.1.0", "name": %q, "plugins": [
		{"type": "bridge", "script": %q}, {"type": "portmap", "script": %q, "capabilities": {"portMappings": true}}]}`,
		name, s.plugin(s.scripts["bridge"], "bridge"), s.plugin(s.scripts["portmap"], "portmap")))
}

// of are the calls of a container as plugins know it.
func of(id string, calls []scripted.Call) []string {
	return rendered(slices.DeleteFunc(slices.Clone(calls), func(c scripted.Call) bool { return c.ContainerID != id }))
}

func exists(t testing.TB, path string) bool {
	t.Helper()
	_, err := os.Lstat(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

func TestPoolSetupRunsOnlyWhatWantsTheCaller(t *testing.T) {
	s, r, p := pooled(t, 2)
	path, result, err := p.Setup(t.Context(), "c1",
		cni.WithCapabilityPortMap([]cni.PortMapping{{HostPort: 80, ContainerPort: 8080}}))
	wantNil(t, err)
	warm := filepath.Base(path)
	calls := s.calls()
	add := []string{"ADD bridge " + warm + "/eth0", "ADD portmap " + warm + "/eth0"}
	wantSame(t, "calls", of(warm, calls), add)
	last := calls[slices.IndexFunc(calls, func(c scripted.Call) bool { return c.Type == "portmap" })]
	wantSame(t, "runtimeConfig", request(t, last)["runtimeConfig"],
		`{"portMappings":[{"hostPort":80,"containerPort":8080,"protocol":"tcp"}]}`)
	wantSame(t, "prevResult", prevResults(t, []scripted.Call{last}), []string{"ADD portmap 10.9.0.2/24"})
	wantSame(t, "sandbox", result.Interfaces["eth0"].Sandbox, path)
	looked, err := r.Lookup("c1")
	wantNil(t, err)
	wantSame(t, "Lookup", looked, result)
	s.wantFull(r, p, 2)
	wantNil(t, r.Check(t.Context(), "c1", path))

	wantNil(t, r.Remove(t.Context(), "c1", ""))
	wantSame(t, "calls", of(warm, s.calls()), slices.Concat(add,
		[]string{"CHECK bridge " + warm + "/eth0", "CHECK portmap " + warm + "/eth0"},
		[]string{"DEL portmap " + warm + "/eth0", "DEL bridge " + warm + "/eth0"}))
	wantSame(t, "the namespace", exists(t, path), false)
	wantIs(t, r.Check(t.Context(), "c1", s.container("x")), cni.ErrNotAttached)
}

func TestPoolMakesWhatDoesNotFit(t *testing.T) {
	s, r, p := pooled(t, 1)
	cold := func(what, id string, opts ...cni.NamespaceOpts) {
		t.Helper()
		path, _, err := p.Setup(t.Context(), id, opts...)
		wantNil(t, err)
		if !strings.HasPrefix(filepath.Base(path), "cold-") {
			t.Errorf("%s: attached in %s, want one that was made for it", what, path)
		}
		wantNil(t, r.Remove(t.Context(), id, ""))
		wantSame(t, what+": the namespace", exists(t, path), false)
	}
	ready := s.wantFull(r, p, 1)
	cold("an address", "c1", cni.WithArgs("IgnoreUnknown", "1"), cni.WithArgs("IP", "10.9.0.7"))
	cold("an argument that bridge would refuse in DEL", "c2", cni.WithArgs("K", "v"))
	cold("a hardware address", "c3", cni.WithConfigArgs("mac", "02:00:00:00:00:01"))
	cold("another interface name", "c4", cni.WithNetwork("net", cni.WithInterfaceName("eth5")))
	wantSame(t, "still ready", s.wantFull(r, p, 1), ready)
	path, _, err := p.Setup(t.Context(), "c5", cni.WithArgs("IgnoreUnknown", "1"), cni.WithArgs("K", "v"), cni.WithConfigArgs("k", 1))
	wantNil(t, err)
	wantSame(t, "the one that was ready", []string{filepath.Base(path)}, ready)

	// One that was made for another configuration is no use.
	ready = s.wantFull(r, p, 1)
	wantNil(t, r.Load(s.poolNetwork("other")))
	_, _, err = p.Setup(t.Context(), "c6")
	wantNil(t, err)
	wantSame(t, "what became of it", of(ready[0], s.calls()), []string{
		"ADD bridge " + ready[0] + "/eth0", "DEL portmap " + ready[0] + "/eth0", "DEL bridge " + ready[0] + "/eth0"})
	wantNil(t, r.Remove(t.Context(), "c6", ""))
	wantNil(t, r.Remove(t.Context(), "c5", ""))
}

func TestPoolSetupThatFailsLeavesNothing(t *testing.T) {
	s, r, p := pooled(t, 1)
	ready := s.wantFull(r, p, 1)
	s.on("portmap", "ADD", says(5, "taken"))
	path, _, err := p.Setup(t.Context(), "c1")
	wantSame(t, "errors", messages(err), []string{"portmap: taken"})
	wantSame(t, "calls", of(ready[0], s.calls()), []string{"ADD bridge " + ready[0] + "/eth0",
		"ADD portmap " + ready[0] + "/eth0", "DEL portmap " + ready[0] + "/eth0", "DEL bridge " + ready[0] + "/eth0"})
	wantSame(t, "the namespace", exists(t, path), false)
	wantIs(t, func() error { _, err := r.Lookup("c1"); return err }(), cni.ErrNotAttached)

	// The same where it is made for the call.
	path, _, err = p.Setup(t.Context(), "c2", cni.WithNetwork("net", cni.WithInterfaceName("eth5")))
	wantSame(t, "errors", messages(err), []string{"portmap: taken"})
	wantSame(t, "the namespace", exists(t, path), false)
	path, _, err = p.Setup(t.Context(), "not an ID")
	wantIs(t, err, cni.ErrInvalidArgument)
	wantSame(t, "the namespace", exists(t, path), false)
	s.on("portmap", "ADD", scripted.Action{})
	_, _, err = p.Setup(t.Context(), "c1")
	wantNil(t, err)
	wantNil(t, r.Remove(t.Context(), "c1", ""))
}

func TestPoolIsDrainedByClose(t *testing.T) {
	s, r, p := pooled(t, 3)
	path, _, err := p.Setup(t.Context(), "c1")
	wantNil(t, err)
	s.wantFull(r, p, 3)
	wantNil(t, p.Close())
	wantNil(t, p.Close())
	wantSame(t, "on record", recorded(t, r), []string{"c1/eth0 attached"})
	wantSame(t, "the container's namespace", exists(t, path), true)
	_, _, err = p.Setup(t.Context(), "c2")
	wantIs(t, err, os.ErrClosed)
	wantNil(t, r.Remove(t.Context(), "c1", ""))
	entries, err := os.ReadDir(filepath.Dir(path))
	wantNil(t, err)
	wantSame(t, "namespaces", len(entries), 0)
}

func TestPoolOfAProcessThatLivesIsLeftAlone(t *testing.T) {
	s, r, p := pooled(t, 2)
	ready := s.wantFull(r, p, 2)
	for what, collect := range map[string]func() (*cni.Report, error){
		"Recover": func() (*cni.Report, error) { return r.Recover(t.Context()) },
		"GC":      func() (*cni.Report, error) { return r.GC(t.Context(), cni.GCOptions{KeepNone: true}) },
	} {
		report, err := collect()
		wantNil(t, err)
		wantSame(t, what, *report, cni.Report{})
		wantSame(t, what+": ready", s.wantFull(r, p, 2), ready)
	}
}

// TestPoolOfAProcessThatWasKilled: at any moment of its life, and in the middle
// of a Setup that took something from it.
func TestPoolOfAProcessThatWasKilled(t *testing.T) {
	const dead = "1:1" // init's number, and not its start
	for what, tt := range map[string]struct {
		happens func(s *stage, warm string)
		removed func(warm string) []string
		dels    int
	}{
		"ready": {func(*stage, string) {}, func(warm string) []string { return []string{warm} }, 2},
		"taken, and the record of the one that was ready is still there": {func(s *stage, warm string) {
			rec, err := s.records().Load(record.ID(warm))
			wantNil(s.t, err)
			rec.ContainerID, rec.PluginID, rec.Warm, rec.Generation = "c1", record.PluginID(warm), false, 0
			rec.Networks[0].State = record.Planned
			wantNil(s.t, s.records().Begin(rec))
		}, func(string) []string { return []string{"c1"} }, 2},
		"not recorded yet": {func(s *stage, warm string) {
			rec, err := s.records().Load(record.ID(warm))
			wantNil(s.t, err)
			dir := filepath.Join(filepath.Dir(filepath.Dir(rec.NetNS.Path)), "2147483647:1")
			ns, err := netns.Create(filepath.Join(dir, "warm-unrecorded"))
			wantNil(s.t, err)
			wantNil(s.t, ns.Close())
		}, func(warm string) []string { return []string{warm} }, 2},
	} {
		t.Run(what, func(t *testing.T) {
			s := newStage(t)
			r := s.runtime(cni.WithOwner("tester"), s.poolNetwork("net"))
			p, err := r.NewPool(cni.PoolOptions{Size: 1})
			wantNil(t, err)
			warm := s.wantFull(r, p, 1)[0]
			s.changeRecord(warm, func(rec *record.Record) { rec.Runtime, rec.Life = dead, "" })
			tt.happens(s, warm)
			dry, err := r.GC(t.Context(), cni.GCOptions{KeepNone: true, DryRun: true})
			wantNil(t, err)
			wantSame(t, "dry run", *dry, cni.Report{Removed: tt.removed(warm)})
			there, err := s.records().Load(record.ID(warm))
			wantNil(t, err)
			wantSame(t, "on record after the dry run", there != nil, true)
			report, err := r.Recover(t.Context())
			wantNil(t, err)
			wantSame(t, "report", *report, cni.Report{Removed: tt.removed(warm)})
			wantSame(t, "DELs", len(of(warm, s.calls()))-1, tt.dels)
			wantNil(t, p.Close())
			wantSame(t, "on record", recorded(t, r), []string{})
			left, err := filepath.Glob(s.path("state", "embedcni", "attachments", "pool", "*", "*"))
			wantNil(t, err)
			wantSame(t, "namespaces", left, []string(nil))
		})
	}
}

// TestFault_F45_CleanUpOfAPooledContainerForgetsItsCache, which has it under the
// ID that plugins know.
func TestFault_F45_CleanUpOfAPooledContainerForgetsItsCache(t *testing.T) {
	s, r, p := pooled(t, 1)
	warm := s.wantFull(r, p, 1)[0]
	_, _, err := p.Setup(t.Context(), "c1")
	wantNil(t, err)
	cached := func() bool {
		return slices.ContainsFunc(s.cached(), func(name string) bool { return strings.Contains(name, warm) })
	}
	wantSame(t, "cached", cached(), true)
	target := cni.CleanUpTarget{ContainerID: "c1", Network: "net", IfName: "eth0", DryRun: true}
	found, err := r.CleanUp(t.Context(), target)
	wantNil(t, err)
	wantSame(t, "found", found, []string{
		"attachment record in " + s.path("state", "embedcni", "attachments"), "cached result in " + s.path("state", "results"),
	})
	target.DryRun = false
	_, err = r.CleanUp(t.Context(), target)
	wantNil(t, err)
	wantSame(t, "cached", cached(), false)
}

func TestPoolsThatAreNoneAreRefused(t *testing.T) {
	r, err := cni.New()
	wantNil(t, err)
	_, err = r.NewPool(cni.PoolOptions{})
	wantIs(t, err, cni.ErrInvalidArgument)
}

// TestRealPool: containers of a pool are reached by their ports, and nothing is
// left of them, nor of the pool.
func TestRealPool(t *testing.T) {
	h := newRealHost(t)
	c := everything()
	before := h.audit()
	r := h.real(cni.WithHostNetNS(h.path("netns", "host")), cni.WithConfListBytes(c.conf("podnet", "1.0.0", h.path("ipam"))))
	p, err := r.NewPool(cni.PoolOptions{Size: 2})
	wantNil(t, err)
	h.wantFull(r, p, 2)
	var paths []string
	for i := range 3 {
		path, result, err := p.Setup(context.Background(), fmt.Sprint("c", i), cni.WithCapabilityPortMap([]cni.PortMapping{
			{HostPort: int32(18080 + i), ContainerPort: 80}}))
		wantNil(t, err)
		paths = append(paths, path)
		if len(result.Interfaces["eth0"].IPConfigs) == 0 {
			t.Error("no address")
		}
		wantNil(t, r.Check(context.Background(), fmt.Sprint("c", i), path))
	}
	_, _, err = p.Setup(context.Background(), "c1")
	wantIs(t, err, cni.ErrAlreadyAttached)
	report, err := r.Recover(context.Background())
	wantNil(t, err)
	wantSame(t, "adopted", slices.Sorted(slices.Values(report.Adopted)), []string{"c0", "c1", "c2"})
	wantNil(t, r.Remove(context.Background(), "c0", ""))
	wantNil(t, p.Close())
	for i := range 3 {
		wantNil(t, r.Remove(context.Background(), fmt.Sprint("c", i), paths[i]))
	}
	h.wantClean(before)
}
