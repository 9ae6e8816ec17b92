package cnitest_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/cnitest"
	"github.com/embedcni/cni/internal/expect"
)

func TestContractOfFake(t *testing.T) {
	cnitest.Contract(t, func(t *testing.T) cnitest.Subject { return &fakeSubject{t: t, faults: map[string]func(){}} })
}

// TestFakeHasTheMethodsOfARuntime: programs may call any of them.
func TestFakeHasTheMethodsOfARuntime(t *testing.T) {
	fake, all := reflect.TypeFor[*cnitest.Fake](), reflect.TypeFor[cnitest.Runtime]()
	without := map[string]bool{"NewPool": true, "Networks": true, "GetCNIResultFromResults": true} // see cnitest.Runtime
	for i := range reflect.TypeFor[*cni.Runtime]().NumMethod() {
		name := reflect.TypeFor[*cni.Runtime]().Method(i).Name
		_, has := fake.MethodByName(name)
		_, listed := all.MethodByName(name)
		if listed == without[name] || has != (listed || name == "NewPool") {
			t.Errorf("%s: the fake has it: %t, Runtime lists it: %t", name, has, listed)
		}
	}
}

// fakeSubject runs the contract on fakes.
type fakeSubject struct {
	t      *testing.T
	first  *cnitest.Fake
	made   int
	faults map[string]func() // that remove them
}

func (s *fakeSubject) New(opts ...cni.Opt) (cnitest.Runtime, error) {
	if s.first != nil {
		return s.first.Restart(opts...)
	}
	var err error
	s.first, err = cnitest.NewFake(opts...)
	return s.first, err
}

func (s *fakeSubject) NetNS() string {
	s.made++
	path := fmt.Sprint("/run/netns/", s.made)
	s.first.NewNetNS(path)
	return path
}

func (s *fakeSubject) EndNetNS(path string) { s.first.EndNetNS(path) }

func (s *fakeSubject) FailAt(verb, network string, err error) {
	if remove := s.faults[verb+network]; remove != nil {
		remove()
		delete(s.faults, verb+network)
	}
	if err != nil {
		s.faults[verb+network] = s.first.Inject(cnitest.Fault{Verb: verb, Network: network, Err: err})
	}
}

func (s *fakeSubject) Break(id string) { expect.NoError(s.t, s.first.Break(id)) }

// fakeConf is a network with a first plugin.
func fakeConf(first string) cni.Opt {
	return cni.WithConfListBytes([]byte(`{"cniVersion": "1.1.0", "name": "net", "plugins": [` + first + `, {"type": "last"}]}`))
}

const hostLocalConf = `{"type": "bridge", "ipam": {"type": "host-local", "subnet": "10.9.0.0/24"}}`

func newFake(t *testing.T, opts ...cni.Opt) *cnitest.Fake {
	t.Helper()
	return expect.Value(cnitest.NewFake(opts...))(t)
}

func TestFakeRemovesWhatWasInterrupted(t *testing.T) {
	ctx := context.Background()
	f := newFake(t, fakeConf(hostLocalConf))
	_, err := f.Setup(ctx, "c1", "/ns")
	expect.NoError(t, err, f.Interrupt("c1"))
	restarted := expect.Value(f.Restart(fakeConf(hostLocalConf)))(t)
	if all := expect.Value(restarted.Attachments())(t); len(all) != 1 || all[0].State != cni.Attaching {
		t.Errorf("attachments %+v", all)
	}
	_, err = restarted.Lookup("c1")
	expect.Is(t, err, cni.ErrNotAttached)
	report, err := restarted.Recover(ctx)
	expect.NoError(t, err)
	expect.Same(t, "removed", report.Removed, []string{"c1"})
	expect.Is(t, f.Interrupt("c1"), cni.ErrNotAttached)
}

func TestFakeFaults(t *testing.T) {
	ctx := context.Background()
	f := newFake(t, fakeConf(hostLocalConf))
	f.Inject(cnitest.Fault{Verb: "ADD", ContainerID: "c1", Plugin: "bridge", Err: cni.ErrPluginKilled, Times: 2})
	for range 2 {
		_, err := f.Setup(ctx, "c1", "/ns")
		expect.Is(t, err, cni.ErrPluginKilled)
		var e *cni.Error
		if !errors.As(err, &e) || e.Plugin != "bridge" {
			t.Errorf("error %v", err)
		}
	}
	_, err := f.Setup(ctx, "c1", "/ns")
	expect.NoError(t, err)

	f.Inject(cnitest.Fault{Verb: "CHECK", Err: cni.ErrNoAnswer})
	health, err := f.Health(ctx, cni.HealthOptions{})
	expect.NoError(t, err)
	expect.Same(t, "verdict without an answer", health.Count(cni.StateUnknown), 1)

	wait := make(chan struct{})
	remove := f.Inject(cnitest.Fault{Verb: "ADD", Wait: wait})
	brief, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	_, err = f.Setup(brief, "c2", "/ns2")
	expect.Is(t, err, context.DeadlineExceeded)
	close(wait)
	_, err = f.Setup(ctx, "c2", "/ns2")
	expect.NoError(t, err)
	remove()
}

// TestFakeExcludesCallsForOneContainer: others are not held up.
func TestFakeExcludesCallsForOneContainer(t *testing.T) {
	ctx := context.Background()
	f := newFake(t, fakeConf(hostLocalConf))
	wait := make(chan struct{})
	f.Inject(cnitest.Fault{Verb: "ADD", ContainerID: "c1", Wait: wait})
	done := make(chan error, 2)
	go func() {
		_, err := f.Setup(ctx, "c1", "/ns")
		done <- err
	}()
	expect.Eventually(t, "the first attachment", func() bool { return len(expect.Value(f.Attachments())(t)) == 1 })
	go func() { done <- f.Remove(ctx, "c1", "/ns") }()
	_, err := f.Setup(ctx, "c2", "/ns2")
	expect.NoError(t, err)
	report, err := f.Recover(ctx)
	expect.NoError(t, err)
	expect.Is(t, report.Skipped["c1"], cni.ErrBusy)
	expect.Same(t, "adopted", report.Adopted, []string{"c2"})
	close(wait)
	expect.NoError(t, expect.Await(t, "one", done), expect.Await(t, "the other", done))
}

func TestFakeRecordsCalls(t *testing.T) {
	ctx := context.Background()
	f := newFake(t, fakeConf(hostLocalConf))
	_, err := f.Setup(ctx, "c1", "/ns", cni.WithArgs("K", "v"))
	expect.NoError(t, err, f.Remove(ctx, "c1", "/ns"))
	_, err = f.Lookup("c1")
	calls := f.Calls()
	if len(calls) != 3 {
		t.Fatalf("calls %+v", calls)
	}
	expect.Same(t, "methods", []string{calls[0].Method, calls[1].Method, calls[2].Method}, []string{"Setup", "Remove", "Lookup"})
	expect.Same(t, "container", calls[0].ContainerID+" "+calls[0].NetNS, "c1 /ns")
	expect.Same(t, "arguments", calls[0].Plan.Attachments[0].Args, map[string]string{"K": "v"})
	expect.Same(t, "error", calls[2].Err, err)
}

func TestFakeNamespaces(t *testing.T) {
	ctx := context.Background()
	f := newFake(t, fakeConf(hostLocalConf))
	f.EndNetNS("/ns")
	_, err := f.Setup(ctx, "c1", "/ns")
	expect.Is(t, err, cni.ErrInvalidNetNS)
	f.NewNetNS("/ns")
	_, err = f.Setup(ctx, "c1", "/ns")
	expect.NoError(t, err)
}

func TestFakeBreaks(t *testing.T) {
	ctx := context.Background()
	f := newFake(t, fakeConf(hostLocalConf))
	expect.Is(t, f.Break("c1"), cni.ErrNotAttached)
	_, err := f.Setup(ctx, "c1", "/ns")
	expect.NoError(t, err, f.Break("c1",
		cni.Difference{Kind: cni.KindRoute, Object: "default", Inside: true, Repairable: true},
		cni.Difference{Kind: cni.KindInterface, Object: "eth0", Why: "gone"}))
	report, err := f.Repair(ctx, "c1", cni.RepairOptions{})
	expect.NoError(t, err)
	expect.Is(t, report.Err(), cni.ErrInContainer, cni.ErrNotRepairable)
	report, err = f.Repair(ctx, "c1", cni.RepairOptions{Inside: true})
	expect.NoError(t, err)
	if len(report.Repaired) != 1 || len(report.Remaining) != 1 || report.Repaired[0].Object != "default" {
		t.Errorf("report %v", report)
	}
}

func TestFakeAddresses(t *testing.T) {
	for name, c := range map[string]struct {
		plugin string
		opts   []cni.NamespaceOpts
		want   []string
	}{
		"host-local": {hostLocalConf, nil, []string{"10.9.0.2/24 10.9.0.1"}},
		"a gateway in the range": {`{"type": "x", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.9.0.0/24", "rangeStart": "10.9.0.5", "gateway": "10.9.0.5"}]]}}`,
			nil, []string{"10.9.0.6/24 10.9.0.5"}},
		"several ranges of a set": {`{"type": "x", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.9.0.0/30"}, {"subnet": "10.9.1.0/24"}]]}}`,
			[]cni.NamespaceOpts{cni.WithArgs("IP", "10.9.1.7")}, []string{"10.9.1.7/24 10.9.1.1"}},
		"static": {`{"type": "x", "ipam": {"type": "static", "addresses": [{"address": "10.9.0.7/16", "gateway": "10.9.0.1"}, {"address": "fd00::7/64"}]}}`,
			nil, []string{"10.9.0.7/16 10.9.0.1", "fd00::7/64 invalid IP"}},
		"another type": {`{"type": "x", "ipam": {"type": "dhcp"}}`, nil, []string{"192.0.2.2/24 192.0.2.1"}},
		"none":         {`{"type": "x"}`, nil, nil},
		"ranges of the call": {`{"type": "x", "capabilities": {"ipRanges": true}, "ipam": {"type": "host-local", "ranges": []}}`,
			[]cni.NamespaceOpts{cni.WithCapabilityIPRanges([]cni.IPRanges{{Subnet: "10.9.7.0/24"}, {Subnet: "fd09::/64"}})},
			[]string{"10.9.7.2/24 10.9.7.1", "fd09::2/64 fd09::1"}},
		"the successor of CNI_ARGS": {hostLocalConf, []cni.NamespaceOpts{cni.WithConfigArgs("ips", []string{"10.9.0.9"})}, []string{"10.9.0.9/24 10.9.0.1"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, fakeConf(c.plugin))
			result, err := f.Setup(context.Background(), "c1", "/ns", c.opts...)
			expect.NoError(t, err)
			var got []string
			for _, i := range result.Networks[0].Interfaces {
				for _, a := range i.Addresses {
					got = append(got, fmt.Sprint(a.Prefix, " ", a.Gateway))
				}
			}
			expect.Same(t, "addresses", got, c.want)
		})
	}
	f := newFake(t, fakeConf(hostLocalConf))
	_, err := f.Setup(context.Background(), "c1", "/ns", cni.WithArgs("IP", "10.8.0.1"))
	if e := new(cni.Error); !errors.As(err, &e) || e.Plugin != "bridge" {
		t.Errorf("an address outside the ranges: %v", err)
	}
	if all := expect.Value(f.Attachments())(t); len(all) != 0 {
		t.Errorf("left are %+v", all)
	}
}

// TestFakeReportsOtherOwners: unless the program names itself.
func TestFakeReportsOtherOwners(t *testing.T) {
	ctx := context.Background()
	f := newFake(t, fakeConf(hostLocalConf), cni.WithOwner("other"))
	_, err := f.Setup(ctx, "c1", "/ns")
	expect.NoError(t, err)
	unnamed := expect.Value(f.Restart(fakeConf(hostLocalConf)))(t)
	report, err := unnamed.Recover(ctx)
	expect.NoError(t, err)
	expect.Same(t, "other owners", report.OtherOwners, []string{"other"})
	named := expect.Value(f.Restart(fakeConf(hostLocalConf), cni.WithOwner("me")))(t)
	report, err = named.Recover(ctx)
	expect.NoError(t, err)
	expect.Same(t, "other owners of one who is named", report.OtherOwners, nil)
}

func TestFakeRefreshesAddresses(t *testing.T) {
	ctx := context.Background()
	f := newFake(t, fakeConf(hostLocalConf))
	_, err := f.Setup(ctx, "c1", "/ns")
	later := cni.Address{Prefix: netip.MustParsePrefix("fd00::9/64"), Gateway: netip.MustParseAddr("fd00::1")}
	expect.NoError(t, err, f.SetAddresses("c1", "net", later))
	expect.Is(t, f.SetAddresses("c1", "other"), cni.ErrNotAttached)
	for _, note := range []bool{false, true} {
		result := expect.Value(f.Refresh(ctx, "c1", cni.RefreshOptions{Note: note}))(t)
		expect.Same(t, "addresses", []cni.Address{result.IPv4(), result.IPv6()}, []cni.Address{{}, later})
		known := expect.Value(f.Lookup("c1"))(t)
		if noted := known.IPv6() == later; noted != note {
			t.Errorf("noted is %t, want %t", noted, note)
		}
	}
	expect.Same(t, "attachments", len(expect.Value(f.LookupAddr(later.IP()))(t)), 1)
	expect.NoError(t, f.Remove(ctx, "c1", ""))
	result := expect.Value(f.Setup(ctx, "c2", "/ns"))(t)
	expect.Same(t, "address of the next", result.IPv4().IP().String(), "10.9.0.3")
}

func TestFakeIsBuiltIn(t *testing.T) {
	f := newFake(t, fakeConf(hostLocalConf))
	plugin := f.GetConfig().Networks[0].Config.Plugins[0]
	expect.Same(t, "kinds", []cni.PluginKind{plugin.Kind, plugin.IPAMKind}, []cni.PluginKind{cni.PluginBuiltIn, cni.PluginBuiltIn})
	_, err := cnitest.NewFake(cni.WithConfListBytes(nil))
	expect.Is(t, err, cni.ErrInvalidConfig)
}

// TestFakeGuards covers the guard's intervals, for which the contract does not wait.
func TestFakeGuards(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	f := newFake(t, fakeConf(hostLocalConf))
	for _, id := range []string{"c1", "wanted"} {
		_, err := f.Setup(ctx, id, "/ns"+id)
		expect.NoError(t, err)
	}
	f.Inject(cnitest.Fault{Verb: "DEL", ContainerID: "c1", Err: cni.ErrNoAnswer, Times: 1})
	if err := f.Remove(ctx, "c1", ""); err == nil {
		t.Error("the removal has not failed")
	}
	_, err := f.Setup(ctx, "unwanted", "/nsu")
	expect.NoError(t, err)
	events, ended := make(chan cni.GuardEvent, 100), make(chan error, 1)
	go func() {
		ended <- f.Guard(ctx, cni.GuardOptions{
			GCInterval: 1500 * time.Millisecond,
			GC:         func(context.Context) (cni.GCOptions, error) { return cni.GCOptions{Keep: []string{"wanted"}}, nil },
			Report:     func(e cni.GuardEvent) { events <- e },
		})
	}()
	seen := map[cni.GuardEventKind]cni.GuardEvent{}
	broken := 0
	for begun := time.Now(); len(seen) < 6; {
		if time.Since(begun) > expect.Patience {
			t.Fatalf("events %v", seen)
		}
		e := expect.Await(t, "an event", events)
		seen[e.Kind] = e
		if e.Kind == cni.GuardBegun || e.Kind == cni.GuardRepaired && broken < 5 {
			broken++
			expect.NoError(t, f.Break("wanted"))
		}
	}
	expect.Same(t, "removed", seen[cni.GuardRemoved].ContainerID, "c1")
	expect.Same(t, "collected", seen[cni.GuardCollected].Report.Removed, []string{"unwanted"})
	expect.Same(t, "contested", seen[cni.GuardContested].ContainerID, "wanted")
	cancel()
	expect.NoError(t, expect.Await(t, "the end", ended))
}
