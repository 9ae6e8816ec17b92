package main

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"

	gocni "github.com/containerd/go-cni"
	"github.com/sasha-s/go-deadlock"

	"github.com/embedcni/cni"
)

// container is a container to attach. N is unique on a host.
type container struct {
	N       int
	Network int
	ID      string
	Path    string // network namespace path
	Port    uint16 // host port that is forwarded to the container's port 80
}

// attacher is a running contender.
type attacher interface {
	add(ctx context.Context, c container) error
	del(ctx context.Context, c container) error
	close() error
}

func newAttacher(s spec) (attacher, error) {
	switch s.Contender.Kind {
	case kindGoCNI:
		// With the race detector go-cni's locks come from this package. With
		// this version of Go it confuses goroutines with each other.
		deadlock.Opts.Disable = true
		return &goCNI{spec: s}, nil
	case kindOneLine:
		return &oneLiner{spec: s}, nil
	case kindDisk, kindInProcess:
		return &ours{spec: s}, nil
	case kindFloor:
		return newFloor(s)
	case kindNetavark:
		return newNetavark(s)
	}
	return nil, fmt.Errorf("no contender %q", s.Contender.Kind)
}

func (s spec) dataDir() string { return filepath.Join(s.Dir, "ipam") }

// checker is an attacher that has a CHECK.
type checker interface {
	check(ctx context.Context, c container) error
}

// perNetwork creates a runtime for each network on first use, because not every
// runtime accepts a network per call.
type perNetwork[T any] struct {
	mu  sync.Mutex
	all map[int]T
}

func (p *perNetwork[T]) get(n int, open func(n int) (T, error)) (T, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if v, ok := p.all[n]; ok {
		return v, nil
	}
	v, err := open(n)
	if err != nil {
		return v, err
	}
	if p.all == nil {
		p.all = make(map[int]T)
	}
	p.all[n] = v
	return v, nil
}

// goCNI is containerd/go-cni with the reference plugins.
type goCNI struct {
	spec     spec
	runtimes perNetwork[gocni.CNI]
}

func (g *goCNI) open(n int) (gocni.CNI, error) {
	rt, err := gocni.New(gocni.WithPluginDir([]string{g.spec.Plugins}), gocni.WithInterfacePrefix("eth"))
	if err != nil {
		return nil, err
	}
	if g.spec.Work == workLoopback {
		return rt, rt.Load(gocni.WithLoNetwork)
	}
	conf, err := conflist(g.spec.Work, g.spec.Contender.Backend, n, g.spec.dataDir())
	if err != nil {
		return nil, err
	}
	return rt, rt.Load(gocni.WithConfListBytes(conf))
}

func (g *goCNI) ports(c container) []gocni.NamespaceOpts {
	if !g.spec.Work.filters() {
		return nil
	}
	return []gocni.NamespaceOpts{gocni.WithCapabilityPortMap([]gocni.PortMapping{
		{HostPort: int32(c.Port), ContainerPort: 80, Protocol: "tcp"}})}
}

func (g *goCNI) add(ctx context.Context, c container) error {
	rt, err := g.runtimes.get(c.Network, g.open)
	if err != nil {
		return err
	}
	_, err = rt.Setup(ctx, c.ID, c.Path, g.ports(c)...)
	return err
}

func (g *goCNI) del(ctx context.Context, c container) error {
	rt, err := g.runtimes.get(c.Network, g.open)
	if err != nil {
		return err
	}
	return rt.Remove(ctx, c.ID, c.Path, g.ports(c)...)
}

func (g *goCNI) check(ctx context.Context, c container) error {
	rt, err := g.runtimes.get(c.Network, g.open)
	if err != nil {
		return err
	}
	return rt.Check(ctx, c.ID, c.Path, g.ports(c)...)
}

func (*goCNI) close() error { return nil }

// ours is this library.
type ours struct {
	spec     spec
	runtimes perNetwork[*cni.Runtime]
	each     sync.Map // *cni.Runtime of each attached container, by its ID, if each has one
}

// runtime returns the runtime of a container.
func (o *ours) runtime(c container) (*cni.Runtime, error) {
	if !o.spec.Contender.Each {
		return o.runtimes.get(c.Network, o.open)
	}
	if rt, ok := o.each.Load(c.ID); ok {
		return rt.(*cni.Runtime), nil
	}
	rt, err := o.open(c.Network)
	if err == nil {
		o.each.Store(c.ID, rt)
	}
	return rt, err
}

func (o *ours) open(n int) (*cni.Runtime, error) {
	opts := []cni.Opt{cni.WithStateDir(filepath.Join(o.spec.Dir, "state")), cni.WithOwner("bench"), cni.WithTeardownErrors()}
	if o.spec.Contender.Kind == kindInProcess {
		// An empty directory, in case the library searches for an executable.
		opts = append(opts, cni.WithPluginDir([]string{filepath.Join(o.spec.Dir, "no-plugins")}), cni.WithBuiltinPlugins())
	} else {
		opts = append(opts, cni.WithPluginDir([]string{o.spec.Plugins}), cni.WithoutBuiltinPlugins())
	}
	if o.spec.Contender.Memory {
		opts = append(opts, cni.WithRecordDir(filepath.Join(o.spec.RunDir, "record")))
	}
	if o.spec.Work == workLoopback {
		return cni.New(append(opts, cni.WithLoNetwork)...)
	}
	conf, err := conflist(o.spec.Work, o.spec.Contender.Backend, n, o.spec.dataDir())
	if err != nil {
		return nil, err
	}
	return cni.New(append(opts, cni.WithConfListBytes(conf))...)
}

func (o *ours) add(ctx context.Context, c container) error {
	rt, err := o.runtime(c)
	if err != nil {
		return err
	}
	_, err = rt.Setup(ctx, c.ID, c.Path, o.ports(c)...)
	return err
}

func (o *ours) ports(c container) []cni.NamespaceOpts { return onePort(o.spec.Work, c) }

// onePort returns the options of a container's port, if the work has one.
func onePort(w work, c container) []cni.NamespaceOpts {
	if !w.filters() {
		return nil
	}
	return []cni.NamespaceOpts{cni.WithCapabilityPortMap([]cni.PortMapping{
		{HostPort: int32(c.Port), ContainerPort: 80, Protocol: "tcp"}})}
}

func (o *ours) del(ctx context.Context, c container) error {
	rt, err := o.runtime(c)
	if err != nil {
		return err
	}
	o.each.Delete(c.ID)
	return rt.Remove(ctx, c.ID, c.Path)
}

func (o *ours) check(ctx context.Context, c container) error {
	rt, err := o.runtime(c)
	if err != nil {
		return err
	}
	return rt.Check(ctx, c.ID, c.Path, o.ports(c)...)
}

func (*ours) close() error { return nil }
