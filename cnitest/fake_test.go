package cnitest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/cnitest"
	"github.com/embedcni/cni/internal/expect"
)

const twoNets = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "any", "capabilities": {"portMappings": true}}]}`

func newFake(t *testing.T) *cnitest.Fake {
	t.Helper()
	return expect.Value(cnitest.NewFake(cni.WithOwner("tester"), cni.WithLoNetwork, cni.WithConfListBytes([]byte(twoNets))))(t)
}

func TestFakeAttachesAndForgets(t *testing.T) {
	ctx, f := t.Context(), newFake(t)
	first := expect.Value(f.Setup(ctx, "a", "/run/netns/a", cni.WithLabels(map[string]string{"k": "v"})))(t)
	second := expect.Value(f.SetupSerially(ctx, "b", "/run/netns/b"))(t)
	expect.Same(t, "address", first.IPv4().Prefix.String(), "192.0.2.3/24")
	expect.Same(t, "gateway", first.IPv4().Gateway.String(), "192.0.2.1")
	expect.Same(t, "another", first.IPv4() == second.IPv4(), false)
	expect.Same(t, "sandbox", first.Interfaces["eth1"].Sandbox, "/run/netns/a")
	expect.Is(t, expect.Err(f.Setup(ctx, "a", "/run/netns/a")), cni.ErrAlreadyAttached)
	expect.NoError(t, f.Check(ctx, "a", "/run/netns/a"))
	expect.Same(t, "result", expect.Value(f.Lookup("a"))(t), first)
	found := expect.Value(f.Attachments())(t)
	var got []string
	for _, a := range found {
		got = append(got, fmt.Sprint(a.ContainerID, a.Network, a.IfName, a.NetNS, a.Owner, a.State, a.Addresses, a.Args))
	}
	expect.Same(t, "the second attachment", got[1:2], []string{fmt.Sprint("a", "pods", "eth1", "/run/netns/a", "tester", cni.Attached, []cni.Address{first.IPv4()}, map[string]string{"k": "v"})})
	expect.NoError(t, f.Remove(ctx, "a", ""), f.Remove(ctx, "b", ""), f.Remove(ctx, "never", ""))
	expect.Same(t, "left", len(expect.Value(f.Attachments())(t)), 0)
	expect.Is(t, f.Check(ctx, "b", ""), cni.ErrNotAttached)
}

func TestFakeRefusesWhatARuntimeRefuses(t *testing.T) {
	ctx, f := t.Context(), newFake(t)
	for name, err := range map[string]error{
		"an ID":     second(f.Setup(ctx, "a/b", "/run/netns/a")),
		"a network": second(f.Setup(ctx, "a", "/run/netns/a", cni.WithNetwork("other"))),
	} {
		expect.Fails(t, name+" is accepted", err)
	}
	empty := expect.Value(cnitest.NewFake())(t)
	expect.Is(t, empty.Status(), cni.ErrCNINotInitialized)
	expect.NoError(t, empty.Load(cni.WithConfListBytes([]byte(twoNets))), empty.Status())
}

func second[T any](_ T, err error) error { return err }

func TestFakeAnswersAndFailsAsItIsTold(t *testing.T) {
	ctx, f := t.Context(), newFake(t)
	prefix, err := types.ParseCIDR("10.1.0.7/24")
	expect.NoError(t, err)
	f.Answer("pods", &types100.Result{
		CNIVersion: "1.0.0", Interfaces: []*types100.Interface{{Name: "eth1", Sandbox: "/run/netns/a"}},
		IPs: []*types100.IPConfig{{Interface: types100.Int(0), Address: *prefix}},
	})
	once := errors.New("once")
	f.Inject(cnitest.Fault{Method: "Setup", ContainerID: "a", Err: once, Times: 1})
	_, err = f.Setup(ctx, "a", "/run/netns/a")
	expect.Is(t, err, once)
	result := expect.Value(f.Setup(ctx, "a", "/run/netns/a"))(t)
	expect.Same(t, "address", result.IPv4().Prefix.String(), "10.1.0.7/24")

	remove := f.Inject(cnitest.Fault{Method: "Remove", Wait: make(chan struct{})})
	ended, cancel := context.WithCancelCause(ctx)
	cancel(types.NewError(types.ErrTryAgainLater, "ended", ""))
	expect.Is(t, f.Remove(ended, "a", ""), context.Cause(ended))
	remove()
	expect.NoError(t, f.Remove(ctx, "a", ""))
	var got []string
	for _, c := range f.Calls() {
		got = append(got, c.Method+" "+c.ContainerID)
	}
	expect.Same(t, "calls", got, []string{"Setup a", "Setup a", "Remove a", "Remove a"})
}
