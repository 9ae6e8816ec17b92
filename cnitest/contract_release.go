package cnitest

import (
	"path/filepath"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netns"
)

// contractGoCNI is a network that go-cni can take over: it has an executable of each type.
const contractGoCNI = `{"cniVersion": "1.0.0", "name": "gocni", "plugins": [
	{"type": "ptp", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.65.0.0/24"}]]}}]}`

// startAsGoCNI returns a Runtime on the network and in the places of go-cni.
func (c *contract) startAsGoCNI(opts ...cni.Opt) Runtime {
	c.Helper()
	all := []cni.Opt{
		cni.WithOwner(contractOwner), cni.WithoutReaping(), cni.WithStateDir("/var/lib/cni"), cni.WithHostNetNS(""),
		cni.WithConfListBytes([]byte(contractGoCNI)),
	}
	rt, err := c.New(append(all, opts...)...)
	expect.NoError(c, err)
	return rt
}

func (c *contract) releases() {
	bare, err := c.New(cni.WithOwner(contractOwner), cni.WithPluginConfDir("/nonexistent"))
	expect.NoError(c, err)
	_, err = bare.Release(c.ctx, cni.ReleaseOptions{})
	c.is("Release without networks", err, cni.ErrCNINotInitialized)

	c.Runtime = c.startAsGoCNI()
	path, result := c.attach("c1")
	gone, _ := c.attach("gone")
	c.EndNetNS(gone)
	_, err = c.Setup(c.ctx, "made", "", cni.WithNewNetNS())
	expect.NoError(c, err)
	_, err = c.startAsGoCNI(cni.WithOwner("other")).Setup(c.ctx, "others", c.NetNS())
	expect.NoError(c, err)
	before := c.recorded()
	dry, err := c.Release(c.ctx, cni.ReleaseOptions{DryRun: true})
	expect.NoError(c, err)
	if len(dry.Released) != 1 || dry.Released[0] != "c1" {
		c.Fatalf("released by a dry run is %q:\n%v", dry.Released, dry.Err())
	}
	expect.Same(c, "on record after a dry run", c.recorded(), before)

	c.Runtime = c.startAsGoCNI()
	report, err := c.Release(c.ctx, cni.ReleaseOptions{})
	expect.NoError(c, err)
	expect.Same(c, "released", report.Released, []string{"c1"})
	expect.Same(c, "refused", ids(report.Refused), []string{"gone", "made"})
	c.is("a container that is gone", report.Refused["gone"], cni.ErrInvalidNetNS)
	c.wantRecorded("after Release", "gone/eth0 gocni attached", "made/eth0 gocni attached", "others/eth0 gocni attached")
	c.detach("gone", "made")
	c.released(path, result)

	c.attach("c1")
	c.Runtime = c.startWith(contractPods, contractTiny, cni.WithStateDir("/var/lib/cni"), cni.WithHostNetNS(""))
	report, err = c.Release(c.ctx, cni.ReleaseOptions{})
	expect.NoError(c, err)
	c.is("a network that is not loaded", report.Refused["c1"], cni.ErrNotFound)
	c.is("the whole report", report.Err(), cni.ErrNotFound)
	c.detach("c1", "others")
}

// released is about a container that go-cni has now: it stays attached until Remove.
func (c *contract) released(path string, result *cni.Result) {
	_, err := c.Lookup("c1")
	c.is("Lookup", err, cni.ErrNotAttached)
	expect.Same(c, "verdict", c.state("c1"), cni.StateUnknown)
	report, err := c.GC(c.ctx, cni.GCOptions{KeepNone: true})
	c.wantReport("GC", report, err, want{})
	expect.NoError(c, c.Check(c.ctx, "c1", path))
	_, err = c.Setup(c.ctx, "c1", path)
	c.is("attached already", err, cni.ErrAlreadyAttached)
	one := c.reconciled(replacing, cni.Expected{ContainerID: "c1", NetNS: c.NetNS()}).Containers[0]
	c.is("its replacement", one.Err, cni.ErrAlreadyAttached)
	_, other := c.attach("c2")
	if other.IPv4() == result.IPv4() {
		c.Errorf("both have %v", other.IPv4())
	}
	c.detach("c2")
	expect.NoError(c, c.Remove(c.ctx, "c1", path))
	_, err = c.Setup(c.ctx, "c1", path)
	expect.NoError(c, err)
	c.detach("c1")
}

// sweeps: namespaces without a container go. Where a process cannot be examined, it may be
// in any of them, and all stay.
func (c *contract) sweeps() {
	unused := c.NetNS()
	sweep := func(path string, dry bool) *netns.SweepReport {
		c.Helper()
		report, err := c.SweepNetNS(filepath.Dir(path), netns.SweepOptions{Prefix: filepath.Base(path), DryRun: dry})
		expect.NoError(c, err)
		return report
	}
	_, err := c.SweepNetNS(filepath.Dir(unused), netns.SweepOptions{})
	if err == nil {
		c.Error("an empty prefix is accepted")
	}
	none, err := c.SweepNetNS("/nonexistent", netns.SweepOptions{Prefix: "c"})
	expect.NoError(c, err)
	expect.Same(c, "namespaces in a missing directory", len(none.Removed)+len(none.Kept), 0)

	path, _ := c.attach("c1", onPods)
	report := sweep(path, false)
	c.is("a container's namespace", report.Kept[path], netns.ErrBusy)
	expect.Same(c, "removed", len(report.Removed), 0)
	expect.NoError(c, c.Check(c.ctx, "c1", path, onPods))
	c.detach("c1")

	kept, err := c.SweepNetNS(filepath.Dir(unused), netns.SweepOptions{
		Prefix: filepath.Base(unused), Keep: func(netns.Entry) error { return errScripted },
	})
	expect.NoError(c, err)
	c.is("one that the caller keeps", kept.Kept[unused], errScripted)
	dry := sweep(unused, true)
	found := len(dry.Removed) == 1 && dry.Removed[0].Path == unused
	if !found {
		c.is("one that may be in use", dry.Kept[unused], netns.ErrBusy)
	}
	expect.Same(c, "removed, after the same by a dry run", sweep(unused, false), dry)
	_, err = c.Setup(c.ctx, "c1", unused, onPods)
	if found {
		c.is("a namespace that was removed", err, cni.ErrInvalidNetNS)
		return
	}
	expect.NoError(c, err)
	c.detach("c1")
}
