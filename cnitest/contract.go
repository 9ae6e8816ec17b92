package cnitest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netns"
)

// Runtime has the methods of a *cni.Runtime that a Fake has too. A program that is to be
// tested with a Fake declares an interface of the methods that it calls, so that it need
// not import this package.
//
// NewPool is not among them, since it returns a type of its own: *cni.Pool, or *FakePool.
// Both are a Pool. Networks and GetCNIResultFromResults are only the Runtime's: the first
// returns networks that call plugins, the second converts results of plugins.
type Runtime interface {
	cni.CNI
	StatusContext(ctx context.Context) error
	StatusOf(ctx context.Context, configs ...[]byte) error
	Ready(ctx context.Context) error
	Plan(id, path string, opts ...cni.NamespaceOpts) (*cni.Plan, error)
	Lookup(id string) (*cni.Result, error)
	Gateways(network string) ([]cni.Gateway, error)
	Watch(ctx context.Context, o cni.WatchOptions) error
	LookupAddr(addr netip.Addr) ([]cni.Attachment, error)
	Refresh(ctx context.Context, id string, o cni.RefreshOptions) (*cni.Result, error)
	Attachments() ([]cni.Attachment, error)
	AttachmentsOf(id string) ([]cni.Attachment, error)
	SetMetadata(ctx context.Context, id string, values map[string]string) error
	Health(ctx context.Context, o cni.HealthOptions) (*cni.HealthReport, error)
	Repair(ctx context.Context, id string, o cni.RepairOptions) (*cni.RepairReport, error)
	Recover(ctx context.Context, opts ...cni.RecoverOption) (*cni.Report, error)
	Reconcile(ctx context.Context, expected []cni.Expected, o cni.ReconcileOptions) (*cni.ReconcileReport, error)
	GC(ctx context.Context, o cni.GCOptions) (*cni.Report, error)
	CleanUp(ctx context.Context, t cni.CleanUpTarget) ([]string, error)
	Guard(ctx context.Context, o cni.GuardOptions) error
	Hold(ctx context.Context, h cni.Hold) error
	Unhold(ctx context.Context, h cni.Hold) error
	Holds() ([]cni.Hold, error)
	Release(ctx context.Context, o cni.ReleaseOptions) (*cni.ReleaseReport, error)
	SweepNetNS(dir string, o netns.SweepOptions) (*netns.SweepReport, error)
}

var (
	_ Runtime = (*cni.Runtime)(nil)
	_ Runtime = (*Fake)(nil)
)

// Subject is a host on which Contract tests an implementation of Runtime.
type Subject interface {
	// New returns the Runtime of a program that starts on the host. A later one with the
	// same owner is that program after a restart.
	New(opts ...cni.Opt) (Runtime, error)
	// NetNS makes a container's network namespace, and returns its path.
	NetNS() string
	// EndNetNS ends it, whatever keeps it alive, as a reboot does.
	EndNetNS(path string)
	// FailAt makes the plugin ContractPlugin fail at a verb on a network with err, from now
	// on; or succeed again, if err is nil.
	FailAt(verb, network string, err error)
	// Break takes something of a container on the first network from the host that
	// Repair can make again.
	Break(id string)
}

// A Runtime that Subject.New returns also has one of these methods, for the parts about
// pools.
type (
	newsPool interface {
		NewPool(o cni.PoolOptions) (*cni.Pool, error)
	}
	newsFakePool interface {
		NewPool(o cni.PoolOptions) (*FakePool, error)
	}
	newsAnyPool interface {
		NewPool(o cni.PoolOptions) (Pool, error)
	}
)

// ContractPlugin is the type of a plugin on the networks of Contract, of which nothing
// but itself can undo the work. It succeeds unless Subject.FailAt says otherwise.
const ContractPlugin = "cnitest-contract"

// Contract tests that an implementation of Runtime behaves as a *cni.Runtime: the same
// errors, results of the same shape, the same fate of containers after failures and
// restarts. *cni.Runtime and Fake pass it. subject makes a new host for each part.
//
// The Runtimes of Subject.New also have a method NewPool, as *cni.Runtime and Fake have it,
// or one that returns a Pool. Release expects executables of the types ptp and host-local
// in the plugin directories, which go-cni would run.
func Contract(t *testing.T, subject func(t *testing.T) Subject) {
	for _, part := range []struct {
		name string
		test func(c *contract)
	}{
		{"Setup returns results", (*contract).results},
		{"Setup follows its options", (*contract).options},
		{"Setup refuses arguments", (*contract).refusals},
		{"Setup refuses to attach twice", (*contract).twice},
		{"Setup uses up a subnet", (*contract).exhaustion},
		{"Setup rolls back", (*contract).rollBack},
		{"Setup that cannot roll back", (*contract).noRollBack},
		{"Setup claims host ports", (*contract).hostPorts},
		{"Setup chooses host ports", (*contract).chosenPorts},
		{"Setup is cancelled", (*contract).cancelled},
		{"Setup in parallel", (*contract).parallel},
		{"Setup replaces the dead", (*contract).replaces},
		{"Setup chooses from a range", (*contract).portRange},
		{"Setup makes the namespace", (*contract).makesNetNS},
		{"Pool", (*contract).pools},
		{"Pool replaces", (*contract).poolReplaces},
		{"one network twice", (*contract).networkTwice},
		{"Remove", (*contract).remove},
		{"Remove fails", (*contract).removeFails},
		{"Check", (*contract).check},
		{"Load and Status", (*contract).load},
		{"not attached", (*contract).notAttached},
		{"Attachments", (*contract).attachments},
		{"SetMetadata", (*contract).metadata},
		{"LookupAddr and Refresh", (*contract).addresses},
		{"Recover", (*contract).recovers},
		{"Recover what is broken", (*contract).recoversBroken},
		{"Recover after failures", (*contract).recoversFailed},
		{"Reconcile", (*contract).reconciles},
		{"Reconcile replaces", (*contract).reconcileReplaces},
		{"Reconcile cannot replace", (*contract).reconcileRefuses},
		{"GC", (*contract).collects},
		{"Health and Repair", (*contract).healthAndRepair},
		{"Hold", (*contract).holds},
		{"Guard", (*contract).guards},
		{"CleanUp", (*contract).cleansUp},
		{"Release", (*contract).releases},
		{"SweepNetNS", (*contract).sweeps},
	} {
		t.Run(part.name, func(t *testing.T) {
			c := &contract{T: t, ctx: context.Background(), Subject: subject(t)}
			c.Runtime = c.start()
			part.test(c)
		})
	}
}

// contract is one part of Contract.
type contract struct {
	*testing.T
	Subject
	Runtime
	ctx context.Context
}

// The networks that are loaded, in this order. A pool attaches pods to nothing ahead of time,
// because the library does not know a plugin that reads aliases.
const (
	contractPods = `{"cniVersion": "1.1.0", "name": "pods", "plugins": [
	{"type": "bridge", "bridge": "contract0", "isDefaultGateway": true, "ipMasq": true, "capabilities": {"ips": true, "aliases": true},
	 "dns": {"nameservers": ["10.61.0.1"]},
	 "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.61.0.0/24"}], [{"subnet": "fd61::/64"}]],
	          "routes": [{"dst": "198.51.100.0/24"}]}},
	{"type": "portmap", "capabilities": {"portMappings": true}},
	{"type": "` + ContractPlugin + `"}]}`
	contractTiny = `{"cniVersion": "1.1.0", "name": "tiny", "plugins": [
	{"type": "ptp", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.62.0.0/29", "rangeStart": "10.62.0.3", "rangeEnd": "10.62.0.4"}]]}},
	{"type": "` + ContractPlugin + `"}]}`
)

// owner is the program of most parts.
const contractOwner = "contract"

// start returns a Runtime of a program that starts, with both networks.
func (c *contract) start(opts ...cni.Opt) Runtime {
	c.Helper()
	return c.startWith(contractPods, contractTiny, opts...)
}

// startWith returns a Runtime with two other networks.
func (c *contract) startWith(first, second string, opts ...cni.Opt) Runtime {
	c.Helper()
	all := []cni.Opt{
		cni.WithOwner(contractOwner), cni.WithoutReaping(), cni.WithStatusCache(0),
		cni.WithConfListBytes([]byte(first)), cni.WithConfListBytes([]byte(second)),
	}
	rt, err := c.New(append(all, opts...)...)
	expect.NoError(c, err)
	return rt
}

var onPods, onTiny = cni.WithNetwork("pods"), cni.WithNetwork("tiny")

// attach attaches a new container to both networks, or to those that are selected.
func (c *contract) attach(id string, opts ...cni.NamespaceOpts) (path string, result *cni.Result) {
	c.Helper()
	path = c.NetNS()
	result, err := c.Setup(c.ctx, id, path, opts...)
	expect.NoError(c, err)
	return path, result
}

// detach removes containers.
func (c *contract) detach(ids ...string) {
	c.Helper()
	for _, id := range ids {
		expect.NoError(c, c.Remove(c.ctx, id, ""))
	}
}

// is checks an error's kinds.
func (c *contract) is(what string, err error, kinds ...error) {
	c.Helper()
	for _, kind := range kinds {
		if !errors.Is(err, kind) {
			c.Errorf("%s: error %v, want one that is %q", what, err, kind)
		}
	}
}

// failure returns the *cni.Error in err.
func (c *contract) failure(err error) *cni.Error {
	c.Helper()
	var e *cni.Error
	if !errors.As(err, &e) {
		c.Fatalf("error %v has no *cni.Error", err)
	}
	return e
}

// left returns the *cni.LeftoverError in err.
func (c *contract) left(err error) *cni.LeftoverError {
	c.Helper()
	var e *cni.LeftoverError
	if !errors.As(err, &e) {
		c.Fatalf("error %v has no *cni.LeftoverError", err)
	}
	return e
}

// recorded returns the attachments on record: "c1/eth0 pods attached".
func (c *contract) recorded() []string {
	c.Helper()
	all, err := c.Attachments()
	expect.NoError(c, err)
	lines := []string{}
	for _, a := range all {
		lines = append(lines, fmt.Sprintf("%s/%s %s %s", a.ContainerID, a.IfName, a.Network, a.State))
	}
	slices.Sort(lines)
	return lines
}

// wantRecorded compares the attachments on record.
func (c *contract) wantRecorded(when string, want ...string) {
	c.Helper()
	if got := c.recorded(); !slices.Equal(got, want) {
		c.Errorf("%s, on record are %q, want %q", when, got, want)
	}
}

// state returns the verdict on a container.
func (c *contract) state(id string) cni.HealthState {
	c.Helper()
	report, err := c.Health(c.ctx, cni.HealthOptions{Containers: []string{id}})
	expect.NoError(c, err)
	h, ok := report.Of(id)
	if !ok {
		c.Fatalf("no verdict on %s in %v", id, report)
	}
	return h.State
}

// ids returns the keys of a report's map, sorted.
func ids[V any](m map[string]V) []string {
	all := []string{}
	for id := range m {
		all = append(all, id)
	}
	slices.Sort(all)
	return all
}

// reported renders a report of Recover or GC for comparison.
func reported(r *cni.Report) string {
	data, err := json.Marshal(map[string][]string{
		"adopted": sorted(r.Adopted), "removed": sorted(r.Removed),
		"kept": ids(r.Kept), "repaired": ids(r.Repaired), "failed": ids(r.Failed), "skipped": ids(r.Skipped),
	})
	if err != nil {
		return err.Error()
	}
	return string(data)
}

func sorted(all []string) []string {
	all = append([]string{}, all...)
	slices.Sort(all)
	return all
}

// want is a report by its lists.
type want struct{ adopted, removed, kept, repaired, failed, skipped []string }

func (c *contract) wantReport(what string, r *cni.Report, err error, w want) {
	c.Helper()
	expect.NoError(c, err)
	errs := func(all []string) map[string]error {
		m := map[string]error{}
		for _, id := range all {
			m[id] = nil
		}
		return m
	}
	repaired := map[string][]cni.Difference{}
	for _, id := range w.repaired {
		repaired[id] = nil
	}
	wanted := reported(&cni.Report{
		Adopted: w.adopted, Removed: w.removed, Kept: errs(w.kept), Repaired: repaired, Failed: errs(w.failed), Skipped: errs(w.skipped),
	})
	if got := reported(r); got != wanted {
		c.Errorf("%s:\n got %s\nwant %s\n%v", what, got, wanted, r)
	}
}
