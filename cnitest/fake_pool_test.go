package cnitest_test

import (
	"context"
	"strings"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/cnitest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netns"
)

const ptpConf = `{"cniVersion": "1.1.0", "name": "net", "plugins": [
	{"type": "ptp", "ipam": {"type": "host-local", "subnet": "10.9.0.0/24"}}]}`

// recordedStates returns the attachments on record: "c1 attached".
func recordedStates(t *testing.T, f *cnitest.Fake) (all []string) {
	t.Helper()
	for _, a := range expect.Value(f.Attachments())(t) {
		id := a.ContainerID
		if strings.HasPrefix(id, "warm-") {
			id = "warm"
		}
		all = append(all, id+" "+string(a.State))
	}
	return all
}

// TestFakePoolIsReadyAtOnce: a test need not wait for it.
func TestFakePoolIsReadyAtOnce(t *testing.T) {
	ctx := context.Background()
	f := newFake(t, cni.WithConfListBytes([]byte(ptpConf)))
	p := expect.Value(f.NewPool(cni.PoolOptions{Size: 2}))(t)
	for i, want := range []string{"10.9.0.2", "10.9.0.3", "10.9.0.4"} {
		expect.Same(t, "ready", p.Ready(), 2)
		_, result, err := p.Setup(ctx, string(rune('a'+i)))
		expect.NoError(t, err)
		expect.Same(t, "address", result.IPv4().IP().String(), want)
	}
	_, result, err := p.Setup(ctx, "d", cni.WithArgs("IP", "10.9.0.77")) // the plugin has to see it
	expect.NoError(t, err)
	expect.Same(t, "requested address", result.IPv4().IP().String(), "10.9.0.77")
	expect.NoError(t, p.Close())
	expect.Same(t, "recorded", recordedStates(t, f), []string{"a attached", "b attached", "c attached", "d attached"})
	calls := f.Calls()
	if last := calls[len(calls)-3]; last.Method != "Pool.Setup" || last.ContainerID != "d" || last.Plan == nil || last.NetNS == "" {
		t.Errorf("call %+v", last)
	}
}

// TestFakePoolWithPluginsThatFail: fewer are ready, and a plugin that waits holds nobody
// up but the Setup that needs it.
func TestFakePoolWithPluginsThatFail(t *testing.T) {
	ctx := context.Background()
	f := newFake(t, cni.WithConfListBytes([]byte(ptpConf)))
	wait := make(chan struct{})
	for what, fault := range map[string]cnitest.Fault{
		"fails": {Verb: "ADD", Err: cni.ErrNoAnswer}, "waits": {Verb: "ADD", Wait: wait},
	} {
		remove := f.Inject(fault)
		p := expect.Value(f.NewPool(cni.PoolOptions{Size: 2}))(t)
		expect.Same(t, what, p.Ready(), 0)
		expect.Same(t, "recorded", recordedStates(t, f), nil)
		remove()
		expect.Same(t, what+" no longer", p.Ready(), 2)
		f.Inject(cnitest.Fault{Verb: "DEL", Err: cni.ErrNoAnswer, Times: 1})
		if err := p.Close(); err == nil {
			t.Error("the removal has not failed")
		}
		expect.Same(t, "recorded", recordedStates(t, f), []string{"warm failed"})
		_, err := f.CleanUp(ctx, cni.CleanUpTarget{ContainerID: expect.Value(f.Attachments())(t)[0].ContainerID, Network: "net", IfName: "eth0"})
		expect.NoError(t, err)
	}
	close(wait)
}

// TestFakePoolOfAProgramThatHasEnded: the next one removes what nobody uses.
func TestFakePoolOfAProgramThatHasEnded(t *testing.T) {
	ctx := context.Background()
	ahead, empty := cni.WithConfListBytes([]byte(ptpConf)), fakeConf(`{"type": "bridge", "capabilities": {"aliases": true}}`)
	recovers := func(f *cnitest.Fake) (*cni.Report, error) { return f.Recover(ctx) }
	collects := func(f *cnitest.Fake) (*cni.Report, error) { return f.GC(ctx, cni.GCOptions{Keep: []string{"c1"}}) }
	for name, c := range map[string]struct {
		conf cni.Opt
		next func(*cnitest.Fake) (*cni.Report, error)
	}{
		"attached ahead of time, by Recover": {ahead, recovers}, "attached ahead of time, by GC": {ahead, collects},
		"without attachments, by Recover": {empty, recovers}, "without attachments, by GC": {empty, collects},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, c.conf)
			p := expect.Value(f.NewPool(cni.PoolOptions{Size: 2}))(t)
			path, _, err := p.Setup(ctx, "c1")
			expect.NoError(t, err)
			p.Interrupt()
			_, _, err = p.Setup(ctx, "c2")
			expect.Is(t, err, cni.ErrPoolClosed)
			restarted := expect.Value(f.Restart(c.conf))(t)
			report := expect.Value(c.next(restarted))(t)
			expect.Same(t, "adopted", report.Adopted, []string{"c1"})
			expect.Same(t, "removed", len(report.Removed), 2)
			expect.Same(t, "recorded", recordedStates(t, restarted), []string{"c1 attached"})
			swept := expect.Value(restarted.SweepNetNS("/run/cnitest", netns.SweepOptions{Prefix: "warm"}))(t)
			if len(swept.Removed) != 0 || swept.Kept[path] == nil && len(swept.Kept) != 0 {
				t.Errorf("swept %+v", swept)
			}
		})
	}
}

// TestFakeSweepsNamespaces: those that were made or used, and that no container has.
func TestFakeSweepsNamespaces(t *testing.T) {
	ctx := context.Background()
	f := newFake(t, fakeConf(hostLocalConf))
	f.NewNetNS("/run/netns/a")
	for _, id := range []string{"b", "c"} {
		_, err := f.Setup(ctx, id, "/run/netns/"+id)
		expect.NoError(t, err)
	}
	expect.NoError(t, f.Remove(ctx, "b", ""))
	f.NewNetNS("/elsewhere/a")
	report := expect.Value(f.SweepNetNS("/run/netns/", netns.SweepOptions{Prefix: "a"}))(t)
	expect.Same(t, "with another prefix", len(report.Removed)+len(report.Kept), 1)
	f.NewNetNS("/run/netns/a1")
	f.NewNetNS("/run/netns/b1")
	var removed []string
	for _, prefix := range []string{"a", "b", "c"} {
		for _, e := range expect.Value(f.SweepNetNS("/run/netns", netns.SweepOptions{Prefix: prefix}))(t).Removed {
			removed = append(removed, e.Path)
		}
	}
	expect.Same(t, "removed", removed, []string{"/run/netns/a1", "/run/netns/b", "/run/netns/b1"})
	_, err := f.Setup(ctx, "b", "/run/netns/b")
	expect.Is(t, err, cni.ErrInvalidNetNS)
}

// TestFakeSharesPortsAmongNetworks that were asked for together.
func TestFakeSharesPortsAmongNetworks(t *testing.T) {
	ctx := context.Background()
	conf := func(name string) cni.Opt {
		return cni.WithConfListBytes([]byte(`{"cniVersion": "1.0.0", "name": "` + name + `", "plugins": [{"type": "x", "capabilities": {"portMappings": true}}]}`))
	}
	f := newFake(t, conf("one"), conf("two"), cni.WithPortRange(30000, 30002))
	result, err := f.Setup(ctx, "c1", "/ns", cni.WithPorts(cni.Port{Label: "http", ContainerPort: 80}),
		cni.WithCapabilityPortMap([]cni.PortMapping{{HostPort: 30000, ContainerPort: 81}}))
	expect.NoError(t, err)
	expect.Same(t, "requested", result.Requested, []cni.Port{{Label: "http", HostPort: 30001, ContainerPort: 80, Protocols: []string{"tcp"}}})
	for _, a := range expect.Value(f.Attachments())(t) {
		expect.Same(t, "ports", a.Ports, []cni.PortMapping{
			{HostPort: 30000, ContainerPort: 81, Protocol: "tcp"}, {HostPort: 30001, ContainerPort: 80, Protocol: "tcp"}})
	}
}

// TestFakeReleasesOnlyWhatGoCNICouldRemove.
func TestFakeReleasesOnlyWhatGoCNICouldRemove(t *testing.T) {
	ctx := context.Background()
	for name, c := range map[string]struct {
		prepare func(t *testing.T, f *cnitest.Fake) error
		want    string
	}{
		"nothing": {func(*testing.T, *cnitest.Fake) error { return nil }, ""},
		"made by a pool": {func(t *testing.T, f *cnitest.Fake) error {
			expect.NoError(t, f.Remove(ctx, "c1", ""))
			p := expect.Value(f.NewPool(cni.PoolOptions{Size: 1}))(t)
			_, _, err := p.Setup(ctx, "c1")
			return err
		}, "a pool made it"},
		"cut short": {func(_ *testing.T, f *cnitest.Fake) error { return f.Interrupt("c1") }, "attached in part"},
		"configured otherwise": {func(_ *testing.T, f *cnitest.Fake) error {
			return f.Load(cni.WithConfListBytes([]byte(strings.ReplaceAll(ptpConf, "10.9.", "10.8."))))
		}, "another configuration"},
		"with arguments for a plugin": {func(t *testing.T, f *cnitest.Fake) error {
			expect.NoError(t, f.Remove(ctx, "c1", ""), f.Load(fakeConf(`{"type": "own"}`)))
			_, err := f.Setup(ctx, "c1", "/ns", cni.WithConfigArgs("k", "v"))
			return err
		}, "WithConfigArgs"},
		"partly another's": {func(t *testing.T, f *cnitest.Fake) error {
			other := expect.Value(f.Restart(cni.WithOwner("other"), cni.WithConfListBytes([]byte(ptpConf))))(t)
			_, err := other.Setup(ctx, "c1", "/ns", cni.WithNetwork("net", cni.WithInterfaceName("net7")))
			return err
		}, "another owner"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, cni.WithConfListBytes([]byte(ptpConf)))
			_, err := f.Setup(ctx, "c1", "/ns")
			expect.NoError(t, err, c.prepare(t, f))
			report := expect.Value(f.Release(ctx, cni.ReleaseOptions{}))(t)
			why := report.Refused["c1"]
			if (why == nil) != (c.want == "") || why != nil && !strings.Contains(why.Error(), c.want) {
				t.Errorf("refused for %v, want %q", why, c.want)
			}
		})
	}
}

// TestFakeReconcileSeesChanges: what another call has changed is not replaced.
func TestFakeReconcileSeesChanges(t *testing.T) {
	ctx := context.Background()
	f := newFake(t, fakeConf(hostLocalConf))
	_, err := f.Setup(ctx, "c1", "/ns")
	expect.NoError(t, err)
	report, err := f.Reconcile(ctx, []cni.Expected{{ContainerID: "c1", NetNS: "/other"}}, cni.ReconcileOptions{
		Decide: func(cni.Health) cni.Decision {
			expect.NoError(t, f.SetMetadata(ctx, "c1", map[string]string{"k": "v"}))
			return cni.DecideReplace
		},
	})
	expect.NoError(t, err)
	expect.Is(t, report.Containers[0].Err, cni.ErrBusy)
}

// TestFakeReconcileKeepsAMadeNamespace: Remove deletes it, also after a replacement in it.
func TestFakeReconcileKeepsAMadeNamespace(t *testing.T) {
	ctx := context.Background()
	f := newFake(t, fakeConf(hostLocalConf))
	result, err := f.Setup(ctx, "c1", "", cni.WithNewNetNS())
	expect.NoError(t, err, f.Break("c1", cni.Difference{Kind: cni.KindInterface, Object: "eth0", Why: "gone"}))
	report, err := f.Reconcile(ctx, []cni.Expected{{ContainerID: "c1", NetNS: result.NetNS}}, cni.ReconcileOptions{
		Decide: func(cni.Health) cni.Decision { return cni.DecideReplace },
	})
	expect.NoError(t, err, report.Err())
	expect.Same(t, "namespace", report.Containers[0].Result.NetNS, result.NetNS)
	expect.NoError(t, f.Remove(ctx, "c1", ""))
	_, err = f.Setup(ctx, "c1", result.NetNS)
	expect.Is(t, err, cni.ErrInvalidNetNS)
}
