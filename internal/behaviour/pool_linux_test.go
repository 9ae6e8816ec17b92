package behaviour_test

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

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// pooled returns a stage with a pool and a network. The first plugin needs
// nothing from the caller, and the second wants ports.
func pooled(t *testing.T, size int) (s *stage, r *cni.Runtime, p *cni.Pool) {
	t.Helper()
	s = newStage(t)
	r = s.Runtime(cni.WithOwner("tester"), s.poolNetwork("net"))
	p, err := r.NewPool(cni.PoolOptions{Size: size})
	expect.NoError(t, err)
	t.Cleanup(func() { expect.NoError(t, p.Close()) })
	s.WantFull(r, p, size)
	return s, r, p
}

func (s *stage) poolNetwork(name string) cni.Opt {
	s.T.Helper()
	return cni.WithConfListBytes(fmt.Appendf(nil, `{"cniVersion": "1.1.0", "name": %q, "plugins": [
		{"type": "bridge", "script": %q}, {"type": "portmap", "script": %q, "capabilities": {"portMappings": true}}]}`,
		name, s.Plugin(s.Scripts["bridge"], "bridge"), s.Plugin(s.Scripts["portmap"], "portmap")))
}

// of returns the calls of a container under the plugins' ID.
func of(id string, calls []scripted.Call) []string {
	return testhost.Rendered(slices.DeleteFunc(slices.Clone(calls), func(c scripted.Call) bool { return c.ContainerID != id }))
}

func exists(t testing.TB, path string) bool {
	t.Helper()
	_, err := os.Lstat(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

func TestPoolSetupRunsOnlyPluginsThatNeedTheCaller(t *testing.T) {
	s, r, p := pooled(t, 2)
	path, result, err := p.Setup(t.Context(), "c1",
		cni.WithCapabilityPortMap([]cni.PortMapping{{HostPort: 80, ContainerPort: 8080}}))
	expect.NoError(t, err)
	warm := filepath.Base(path)
	calls := s.Calls()
	add := []string{"ADD bridge " + warm + "/eth0", "ADD portmap " + warm + "/eth0"}
	expect.Same(t, "calls", of(warm, calls), add)
	last := calls[slices.IndexFunc(calls, func(c scripted.Call) bool { return c.Type == "portmap" })]
	expect.Same(t, "runtimeConfig", testhost.Request(t, last)["runtimeConfig"],
		`{"portMappings":[{"hostPort":80,"containerPort":8080,"protocol":"tcp"}]}`)
	expect.Same(t, "prevResult", prevResults(t, []scripted.Call{last}), []string{"ADD portmap 10.9.0.2/24"})
	expect.Same(t, "sandbox", result.Interfaces["eth0"].Sandbox, path)
	looked, err := r.Lookup("c1")
	expect.NoError(t, err)
	expect.Same(t, "Lookup", looked, result)
	s.WantFull(r, p, 2)
	expect.NoError(t, r.Check(t.Context(), "c1", path))

	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
	expect.Same(t, "calls", of(warm, s.Calls()), slices.Concat(add,
		[]string{"CHECK bridge " + warm + "/eth0", "CHECK portmap " + warm + "/eth0"},
		[]string{"DEL portmap " + warm + "/eth0", "DEL bridge " + warm + "/eth0"}))
	expect.Same(t, "the namespace", exists(t, path), false)
	expect.Is(t, r.Check(t.Context(), "c1", s.Container("x")), cni.ErrNotAttached)
}

func TestPoolMakesAContainerIfNoneFits(t *testing.T) {
	s, r, p := pooled(t, 1)
	cold := func(what, id string, opts ...cni.NamespaceOpts) {
		t.Helper()
		path, _, err := p.Setup(t.Context(), id, opts...)
		expect.NoError(t, err)
		if !strings.HasPrefix(filepath.Base(path), "cold-") {
			t.Errorf("%s: attached in %s, want one that was made for it", what, path)
		}
		expect.NoError(t, r.Remove(t.Context(), id, ""))
		expect.Same(t, what+": the namespace", exists(t, path), false)
	}
	ready := s.WantFull(r, p, 1)
	cold("an address", "c1", cni.WithArgs("IgnoreUnknown", "1"), cni.WithArgs("IP", "10.9.0.7"))
	cold("an argument that bridge would refuse in DEL", "c2", cni.WithArgs("K", "v"))
	cold("a hardware address", "c3", cni.WithConfigArgs("mac", "02:00:00:00:00:01"))
	cold("another interface name", "c4", cni.WithNetwork("net", cni.WithInterfaceName("eth5")))
	expect.Same(t, "still ready", s.WantFull(r, p, 1), ready)
	path, _, err := p.Setup(t.Context(), "c5", cni.WithArgs("IgnoreUnknown", "1"), cni.WithArgs("K", "v"), cni.WithConfigArgs("k", 1))
	expect.NoError(t, err)
	expect.Same(t, "the one that was ready", []string{filepath.Base(path)}, ready)

	// A container of another configuration cannot be used.
	ready = s.WantFull(r, p, 1)
	expect.NoError(t, r.Load(s.poolNetwork("other")))
	_, _, err = p.Setup(t.Context(), "c6")
	expect.NoError(t, err)
	s.WantFull(r, p, 1) // no Setup waits for a removal
	expect.Same(t, "what became of it", of(ready[0], s.Calls()), []string{
		"ADD bridge " + ready[0] + "/eth0", "DEL portmap " + ready[0] + "/eth0", "DEL bridge " + ready[0] + "/eth0"})
	expect.NoError(t, r.Remove(t.Context(), "c6", ""))
	expect.NoError(t, r.Remove(t.Context(), "c5", ""))
}

func TestPoolSetupThatFailsLeavesNothing(t *testing.T) {
	s, r, p := pooled(t, 1)
	ready := s.WantFull(r, p, 1)
	s.On("portmap", "ADD", testhost.Says(5, "taken"))
	path, _, err := p.Setup(t.Context(), "c1")
	expect.Same(t, "errors", testhost.Messages(err), []string{"portmap: taken"})
	expect.Same(t, "calls", of(ready[0], s.Calls()), []string{"ADD bridge " + ready[0] + "/eth0",
		"ADD portmap " + ready[0] + "/eth0", "DEL portmap " + ready[0] + "/eth0", "DEL bridge " + ready[0] + "/eth0"})
	expect.Same(t, "the namespace", exists(t, path), false)
	expect.Is(t, func() error { _, err := r.Lookup("c1"); return err }(), cni.ErrNotAttached)

	// The same for a container that is made during the call.
	path, _, err = p.Setup(t.Context(), "c2", cni.WithNetwork("net", cni.WithInterfaceName("eth5")))
	expect.Same(t, "errors", testhost.Messages(err), []string{"portmap: taken"})
	expect.Same(t, "the namespace", exists(t, path), false)
	path, _, err = p.Setup(t.Context(), "not an ID")
	expect.Is(t, err, cni.ErrInvalidArgument)
	expect.Same(t, "the namespace", exists(t, path), false)
	s.On("portmap", "ADD", scripted.Action{})
	_, _, err = p.Setup(t.Context(), "c1")
	expect.NoError(t, err)
	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
}

func TestPoolIsDrainedByClose(t *testing.T) {
	s, r, p := pooled(t, 3)
	path, _, err := p.Setup(t.Context(), "c1")
	expect.NoError(t, err)
	s.WantFull(r, p, 3)
	expect.NoError(t, p.Close())
	expect.NoError(t, p.Close())
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{"c1/eth0 attached"})
	expect.Same(t, "the container's namespace", exists(t, path), true)
	_, _, err = p.Setup(t.Context(), "c2")
	expect.Is(t, err, os.ErrClosed)
	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
	entries, err := os.ReadDir(filepath.Dir(path))
	expect.NoError(t, err)
	expect.Same(t, "namespaces", len(entries), 0)
}

func TestPoolOfAProcessThatLivesIsLeftAlone(t *testing.T) {
	s, r, p := pooled(t, 2)
	ready := s.WantFull(r, p, 2)
	for what, collect := range map[string]func() (*cni.Report, error){
		"Recover": func() (*cni.Report, error) { return r.Recover(t.Context()) },
		"GC":      func() (*cni.Report, error) { return r.GC(t.Context(), cni.GCOptions{KeepNone: true}) },
	} {
		report, err := collect()
		expect.NoError(t, err)
		expect.Same(t, what, *report, cni.Report{})
		expect.Same(t, what+": ready", s.WantFull(r, p, 2), ready)
	}
}

// TestPoolOfAProcessThatWasKilled at any moment of its life, and in the middle
// of a Setup that took a container from it.
func TestPoolOfAProcessThatWasKilled(t *testing.T) {
	const dead = "1:1" // init's number with another start time
	for what, tt := range map[string]struct {
		happens func(s *stage, warm string)
		removed func(warm string) []string
		dels    int
	}{
		"ready": {func(*stage, string) {}, func(warm string) []string { return []string{warm} }, 2},
		"taken, and the record of the one that was ready is still there": {func(s *stage, warm string) {
			rec, err := s.Records().Load(record.ID(warm))
			expect.NoError(s.T, err)
			rec.ContainerID, rec.PluginID, rec.Warm, rec.Generation = "c1", record.PluginID(warm), false, 0
			rec.Attachments[0].State = record.Planned
			expect.NoError(s.T, s.Records().Begin(rec))
		}, func(string) []string { return []string{"c1"} }, 2},
		"not recorded yet": {func(s *stage, warm string) {
			rec, err := s.Records().Load(record.ID(warm))
			expect.NoError(s.T, err)
			dir := filepath.Join(filepath.Dir(filepath.Dir(rec.NetNS.Path)), "2147483647:1")
			ns, err := netns.Create(filepath.Join(dir, "warm-unrecorded"))
			expect.NoError(s.T, err)
			expect.NoError(s.T, ns.Close())
		}, func(warm string) []string { return []string{warm} }, 2},
	} {
		t.Run(what, func(t *testing.T) {
			s := newStage(t)
			r := s.Runtime(cni.WithOwner("tester"), s.poolNetwork("net"))
			p, err := r.NewPool(cni.PoolOptions{Size: 1})
			expect.NoError(t, err)
			warm := s.WantFull(r, p, 1)[0]
			s.ChangeRecord(warm, func(rec *record.Record) { rec.Runtime, rec.Life = dead, "" })
			tt.happens(s, warm)
			dry, err := r.GC(t.Context(), cni.GCOptions{KeepNone: true, DryRun: true})
			expect.NoError(t, err)
			expect.Same(t, "dry run", *dry, cni.Report{Removed: tt.removed(warm)})
			there, err := s.Records().Load(record.ID(warm))
			expect.NoError(t, err)
			expect.Same(t, "on record after the dry run", there != nil, true)
			report, err := r.Recover(t.Context())
			expect.NoError(t, err)
			expect.Same(t, "report", *report, cni.Report{Removed: tt.removed(warm)})
			expect.Same(t, "DELs", len(of(warm, s.Calls()))-1, tt.dels)
			expect.NoError(t, p.Close())
			expect.Same(t, "on record", testhost.Recorded(t, r), []string{})
			left, err := filepath.Glob(s.Path("state", "embedcni", "attachments", "pool", "*", "*"))
			expect.NoError(t, err)
			expect.Same(t, "namespaces", left, []string(nil))
		})
	}
}

// TestFault_F45_CleanUpOfAPooledContainerForgetsItsCache, which uses the
// plugins' ID.
func TestFault_F45_CleanUpOfAPooledContainerForgetsItsCache(t *testing.T) {
	s, r, p := pooled(t, 1)
	warm := s.WantFull(r, p, 1)[0]
	_, _, err := p.Setup(t.Context(), "c1")
	expect.NoError(t, err)
	cached := func() bool {
		return slices.ContainsFunc(s.Cached(), func(name string) bool { return strings.Contains(name, warm) })
	}
	expect.Same(t, "cached", cached(), true)
	target := cni.CleanUpTarget{ContainerID: "c1", Network: "net", IfName: "eth0", DryRun: true}
	found, err := r.CleanUp(t.Context(), target)
	expect.NoError(t, err)
	expect.Same(t, "found", found, []string{
		"attachment record in " + s.Path("state", "embedcni", "attachments"), "cached result in " + s.Path("state", "results"),
	})
	target.DryRun = false
	_, err = r.CleanUp(t.Context(), target)
	expect.NoError(t, err)
	expect.Same(t, "cached", cached(), false)
}

func TestPoolsThatAreNoneAreRefused(t *testing.T) {
	r, err := cni.New()
	expect.NoError(t, err)
	_, err = r.NewPool(cni.PoolOptions{})
	expect.Is(t, err, cni.ErrInvalidArgument)
}

// TestRealPool: a pool's containers are reachable through their ports, and
// neither they nor the pool leave anything behind.
func TestRealPool(t *testing.T) {
	h := newRealHost(t)
	c := testhost.Everything()
	before := h.Audit()
	r := h.Real(cni.WithHostNetNS(h.Path("netns", "host")), cni.WithConfListBytes(c.Conf("podnet", "1.0.0", h.Path("ipam"))))
	p, err := r.NewPool(cni.PoolOptions{Size: 2})
	expect.NoError(t, err)
	h.WantFull(r, p, 2)
	var paths []string
	for i := range 3 {
		path, result, err := p.Setup(context.Background(), fmt.Sprint("c", i), cni.WithCapabilityPortMap([]cni.PortMapping{
			{HostPort: int32(18080 + i), ContainerPort: 80}}))
		expect.NoError(t, err)
		paths = append(paths, path)
		if len(result.Interfaces["eth0"].IPConfigs) == 0 {
			t.Error("no address")
		}
		expect.NoError(t, r.Check(context.Background(), fmt.Sprint("c", i), path))
	}
	_, _, err = p.Setup(context.Background(), "c1")
	expect.Is(t, err, cni.ErrAlreadyAttached)
	report, err := r.Recover(context.Background())
	expect.NoError(t, err)
	expect.Same(t, "adopted", slices.Sorted(slices.Values(report.Adopted)), []string{"c0", "c1", "c2"})
	expect.NoError(t, r.Remove(context.Background(), "c0", ""))
	expect.NoError(t, p.Close())
	for i := range 3 {
		expect.NoError(t, r.Remove(context.Background(), fmt.Sprint("c", i), paths[i]))
	}
	h.WantClean(before)
}
