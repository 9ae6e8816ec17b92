package cni_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/plugin"
)

func TestInProcessErrorSaysSoAndKeepsItsCause(t *testing.T) {
	s := testhost.NewStage(t)
	cause := errors.New("cause")
	p := testhost.Fails("ADD", plugin.Errorf(11, "no more: %w", cause))
	builtIn := cni.WithBuiltins(map[string]plugin.Plugin{"p": p})
	for kind, opt := range map[string]cni.Opt{"built in": builtIn, "registered": cni.WithPlugin("p", p)} {
		_, err := s.Runtime(opt, testhost.ListOfTypes("net", "p")).Setup(t.Context(), "c1", s.Container("c-"+string(kind)))
		expect.Is(t, err, cause)
		expect.Same(t, "error", err.Error(), fmt.Sprintf(
			`add network "net" of container c1, interface eth0: plugin type="p" (%s) failed (add): no more: cause (code 11); the plugin asks to be tried again later`, kind))
		got := *testhost.AsError(t, err)
		got.Err = nil
		expect.Same(t, "error", got, cni.Error{Op: "ADD", Network: "net", Plugin: "p", PluginKind: kind, ContainerID: "c1", IfName: "eth0",
			Code: 11, Msg: "no more: cause"})
	}
}

// TestCallersPluginIsNotSwept: nobody knows what a caller's plugin leaves
// behind, whatever its name, so its failed DEL stays a failure.
func TestCallersPluginIsNotSwept(t *testing.T) {
	s := testhost.NewStage(t)
	failure := errors.New("cannot delete")
	for kind, opt := range map[string]cni.Opt{
		"registered": cni.WithPlugin("portmap", testhost.Fails("DEL", failure)),
		"built in":   cni.WithBuiltins(map[string]plugin.Plugin{"portmap": testhost.Fails("DEL", failure)}),
	} {
		id := strings.ReplaceAll(string(kind), " ", "-")
		r := s.Runtime(opt, testhost.ListOfTypes("net", "portmap"))
		path := s.Container(id)
		expect.NoError(t, testhost.SetUp(t.Context(), r, id, path)())
		err := r.Remove(t.Context(), id, path)
		expect.Same(t, "failure of the "+string(kind), errors.Is(err, failure), kind == "registered")
	}
}

// slow is a built-in plugin whose first DEL fails. It notes how long a DEL may take.
type slow struct {
	testhost.Idle
	dels *int
	may  *time.Duration
}

func (p slow) Del(ctx context.Context, _ *plugin.Request) error {
	if *p.dels++; *p.dels == 1 {
		return errors.New("cannot delete")
	}
	deadline, _ := ctx.Deadline()
	*p.may = time.Until(deadline)
	return nil
}

// TestRetryRemovalsWaitsForPlugins: only for a lock does it wait shortly.
func TestRetryRemovalsWaitsForPlugins(t *testing.T) {
	s := testhost.NewStage(t)
	var dels int
	var may time.Duration
	r := s.Runtime(cni.WithBuiltins(map[string]plugin.Plugin{"p": slow{dels: &dels, may: &may}}), testhost.ListOfTypes("net", "p"),
		cni.WithTimeouts(cni.Timeouts{Del: time.Hour}))
	path := s.Container("c1")
	testhost.MustSetUp(t, r, "c1", path)
	expect.Fails(t, "Remove did not fail", r.Remove(t.Context(), "c1", path))
	expect.Eventually(t, "the removal", func() bool {
		return slices.Equal(expect.Value(r.RetryRemovals(t.Context()))(t).Removed, []string{"c1"})
	})
	expect.That(t, may >= time.Hour/2, "the DEL could take %v", may)
}

// leased is a built-in plugin that has an address for each container. In its
// DEL it asks for the addresses of the others.
type leased struct {
	testhost.Idle
	inUse *[]netip.Addr
}

func (leased) Add(_ context.Context, r *plugin.Request) (*types100.Result, error) {
	return &types100.Result{
		Interfaces: []*types100.Interface{{Name: r.IfName, Sandbox: r.NetNS}},
		IPs:        []*types100.IPConfig{{Address: net.IPNet{IP: net.IP{10, 9, 0, r.ContainerID[1]}, Mask: net.CIDRMask(24, 32)}}},
	}, nil
}

func (p leased) Del(ctx context.Context, _ *plugin.Request) (err error) {
	*p.inUse, err = contract.From(ctx).Record.InUse()
	return err
}

// TestFault_F44_TheAddressesOfARecordThatCannotBeReadStayInUse: rules for these
// addresses do not belong to a removed neighbour. libcni's cache has the result
// too.
func TestFault_F44_TheAddressesOfARecordThatCannotBeReadStayInUse(t *testing.T) {
	s := testhost.NewStage(t)
	var inUse []netip.Addr
	r := s.Runtime(cni.WithBuiltins(map[string]plugin.Plugin{"p": leased{inUse: &inUse}}), testhost.ListOfTypes("net", "p"))
	for _, id := range []string{"c1", "c2"} {
		expect.NoError(t, testhost.SetUp(t.Context(), r, id, s.Container(id))())
	}
	expect.NoError(t, os.Remove(s.RecordFile("c1")+".json"), os.Mkdir(s.RecordFile("c1")+".json", 0o700))
	expect.NoError(t, r.Remove(t.Context(), "c2", ""))
	expect.Same(t, "addresses in use", inUse, []netip.Addr{netip.AddrFrom4([4]byte{10, 9, 0, '1'})})
}
