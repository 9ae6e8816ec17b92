package cnitest_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/cnitest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

func TestContractOfRuntime(t *testing.T) {
	cnitest.Contract(t, func(t *testing.T) cnitest.Subject {
		expect.NoError(t, os.RemoveAll("/var/lib/cni")) // the last addresses of the parts before
		host := cnitest.Host(t)
		for _, typ := range []string{"ptp", "host-local"} { // for go-cni; they do nothing if they are called beside the built-in ones
			expect.NoError(t, os.WriteFile(filepath.Join(host.PluginDir, typ), []byte("#!/bin/true\n"), 0o755))
		}
		return &realSubject{t: t, host: host, opts: []cni.Opt{cni.WithBuiltinPlugins()}}
	})
}

func TestContractOfRuntimeWithExecutables(t *testing.T) {
	cnitest.Contract(t, func(t *testing.T) cnitest.Subject {
		expect.NoError(t, os.RemoveAll("/var/lib/cni"))
		return &realSubject{t: t, host: cnitest.Host(t, cnitest.WithReferencePlugins())}
	})
}

// realSubject runs the contract on the kernel.
type realSubject struct {
	t    *testing.T
	host *cnitest.TestHost
	opts []cni.Opt

	mu     sync.Mutex
	faults map[string]error // by verb and network
}

func (s *realSubject) New(opts ...cni.Opt) (cnitest.Runtime, error) {
	all := append(s.host.Options(), cni.WithPlugin(cnitest.ContractPlugin, faulty{s}))
	return cni.New(append(append(all, s.opts...), opts...)...)
}

func (s *realSubject) NetNS() string { return cnitest.Container(s.t) }

// EndNetNS also removes the library's pin, which keeps the namespace alive for the
// plugins' DEL, as a reboot does.
func (s *realSubject) EndNetNS(path string) {
	ns, err := netns.Open(path)
	expect.NoError(s.t, err)
	expect.NoError(s.t, netns.Remove(path), ns.Close())
	pins, err := filepath.Glob(filepath.Join(s.host.StateDir, "embedcni", "attachments", "netns", "*"))
	expect.NoError(s.t, err)
	for _, pin := range pins {
		pinned, err := netns.Open(pin)
		if errors.Is(err, netns.ErrNotNetNS) {
			continue // removed before
		}
		expect.NoError(s.t, err)
		if expect.NoError(s.t, pinned.Close()); pinned.ID() == ns.ID() {
			expect.NoError(s.t, netns.Unpin(pin))
		}
	}
}

func (s *realSubject) FailAt(verb, network string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	faults := maps.Clone(s.faults)
	if faults == nil {
		faults = map[string]error{}
	}
	faults[verb+network] = err
	s.faults = faults
}

// Break takes the port from the bridge.
func (s *realSubject) Break(id string) {
	rt := s.host.Runtime()
	result, err := rt.Lookup(id)
	expect.NoError(s.t, err)
	expect.NoError(s.t, s.host.Do(func() error {
		link, err := netlink.LinkByName(result.Networks[0].Interfaces[1].Name)
		if err != nil {
			return err
		}
		return netlink.LinkSetNoMaster(link)
	}))
}

// faulty is the plugin that fails as the subject says.
type faulty struct{ *realSubject }

func (f faulty) fault(verb string, r *plugin.Request) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.faults[verb+r.Name]
}

func (f faulty) Add(_ context.Context, r *plugin.Request) (*types100.Result, error) {
	if err := f.fault("ADD", r); err != nil {
		return nil, err
	}
	return r.Chained()
}

func (f faulty) Del(_ context.Context, r *plugin.Request) error    { return f.fault("DEL", r) }
func (f faulty) Check(_ context.Context, r *plugin.Request) error  { return f.fault("CHECK", r) }
func (f faulty) Status(_ context.Context, r *plugin.Request) error { return f.fault("STATUS", r) }
