package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/containerd"
	"github.com/containerd/containerd/cio"
	"github.com/containerd/containerd/oci"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/netconf"
)

const (
	network  = "functions"
	confDir  = workDir + "/net.d"
	confFile = confDir + "/10-" + network + ".conflist"
	stateDir = workDir + "/cni"

	port = "8080" // on which a function answers
)

// defaultNetwork returns the network of all functions, on a subnet that nothing uses.
func defaultNetwork() netconf.Network {
	return netconf.Network{Name: network, Plugins: []netconf.Plugin{
		netconf.Bridge{
			Name: "functions0", DefaultGateway: true, Masquerade: true,
			IPAM: netconf.HostLocal{DataDir: stateDir + "/networks", Ranges: []netconf.Range{netconf.AnyIPv4()}},
		},
		netconf.Firewall{},
	}}
}

// Provider runs functions: each replica is a containerd task on the network.
type Provider struct {
	containers *containerd.Client
	net        *cni.Runtime
	conf       netconf.Dir

	mu        sync.Mutex
	functions map[string]*function
}

// function is a deployed function.
type function struct {
	image    string
	replicas []*replica
	made     int // replicas so far
	turn     int // of the next request
}

// replica is a running task.
type replica struct {
	name    string // of the function, and the number
	number  int
	task    containerd.Task
	address string // of its HTTP server
}

// netID is the replica's container ID on the network. The name alone would not do: after
// a crash, a new task may be on its way while the network of the old one is cleaned up.
func (r *replica) netID() string { return fmt.Sprintf("%s-%d", r.name, r.task.Pid()) }

// netns is the path of the replica's network namespace.
func (r *replica) netns() string { return fmt.Sprintf("/proc/%d/ns/net", r.task.Pid()) }

// newProvider writes the default network and loads it.
func newProvider(ctx context.Context, client *containerd.Client) (*Provider, error) {
	conf := netconf.Dir{Path: confDir, StateDir: stateDir}
	written, err := conf.Write(ctx, filepath.Base(confFile), defaultNetwork())
	if err != nil {
		return nil, err
	}
	rt, err := cni.New(cni.WithConfListFile(written.Path), cni.WithBuiltinPlugins(), cni.WithStateDir(stateDir))
	if err != nil {
		return nil, err
	}
	// What a provider does first after a restart.
	if _, err := rt.Recover(ctx); err != nil {
		return nil, err
	}
	return &Provider{containers: client, net: rt, conf: conf, functions: map[string]*function{}}, nil
}

// Deploy starts the first replica of a function.
func (p *Provider) Deploy(ctx context.Context, name, image string) error {
	p.mu.Lock()
	if p.functions[name] != nil {
		p.mu.Unlock()
		return fmt.Errorf("function %s exists", name)
	}
	p.functions[name] = &function{image: image}
	p.mu.Unlock()
	return p.Scale(ctx, name, 1)
}

// Scale starts or stops replicas, all at once.
func (p *Provider) Scale(ctx context.Context, name string, replicas int) error {
	p.mu.Lock()
	f := p.functions[name]
	if f == nil {
		p.mu.Unlock()
		return fmt.Errorf("no function %s", name)
	}
	var starting, stopping []*replica
	for n := len(f.replicas); n < replicas; n++ {
		f.made++
		starting = append(starting, &replica{name: fmt.Sprintf("%s-%d", name, f.made), number: f.made})
	}
	stopping = append(stopping, f.replicas[min(replicas, len(f.replicas)):]...)
	p.mu.Unlock()
	return errors.Join(
		each(starting, func(r *replica) error { return p.start(ctx, name, f.image, r) }),
		each(stopping, func(r *replica) error { return p.Stop(ctx, r.name) }),
	)
}

// each runs do for all at once.
func each[T any](all []T, do func(T) error) error {
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, one := range all {
		wg.Go(func() { errs[i] = do(one) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// start starts a replica. If anything fails, it undoes everything.
func (p *Provider) start(ctx context.Context, function, imageName string, r *replica) (err error) {
	name := r.name
	image, err := p.containers.GetImage(ctx, imageName)
	if err != nil {
		return err
	}
	c, err := p.containers.NewContainer(ctx, name,
		containerd.WithSnapshotter(snapshotter), containerd.WithNewSnapshot(name, image),
		containerd.WithNewSpec(oci.WithImageConfig(image), oci.WithHostname(name), oci.WithCgroup(filepath.Join("/", cgroup, name))))
	if err != nil {
		return err
	}
	if r.task, err = c.NewTask(ctx, cio.NullIO); err != nil {
		return errors.Join(err, c.Delete(context.WithoutCancel(ctx), containerd.WithSnapshotCleanup))
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.remove(context.WithoutCancel(ctx), r))
		}
	}()
	// The task's process exists and waits: its network is complete before it runs.
	result, err := p.net.Setup(ctx, r.netID(), r.netns(), cni.WithMetadata(map[string]string{"function": function}))
	if err != nil {
		return err
	}
	r.address = net.JoinHostPort(result.IPv4().IP().String(), port)
	if err := r.task.Start(ctx); err != nil {
		return err
	}
	if err := answers(ctx, r.address); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.functions[function]
	f.replicas = append(f.replicas, r)
	slices.SortFunc(f.replicas, func(a, b *replica) int { return a.number - b.number })
	return nil
}

// answers waits until a function listens, of which nothing outside its namespace informs.
func answers(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err == nil {
			return c.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("it does not listen at %s: %w", address, err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Stop stops a replica and removes all that it has. Its task may be dead.
func (p *Provider) Stop(ctx context.Context, name string) error {
	r := p.take(name)
	if r == nil {
		return fmt.Errorf("no replica %s", name)
	}
	return p.remove(ctx, r)
}

// take removes a replica from its function, so that it gets no more requests.
func (p *Provider) take(name string) *replica {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.functions {
		if i := slices.IndexFunc(f.replicas, func(r *replica) bool { return r.name == name }); i >= 0 {
			r := f.replicas[i]
			f.replicas = slices.Delete(slices.Clone(f.replicas), i, i+1)
			return r
		}
	}
	return nil
}

// remove removes the network first, while the task still has it: so the plugins find
// what they have made. If the task is gone, the library works from its record.
func (p *Provider) remove(ctx context.Context, r *replica) error {
	err := p.net.Remove(ctx, r.netID(), r.netns())
	_, derr := r.task.Delete(ctx, containerd.WithProcessKill)
	c, cerr := p.containers.LoadContainer(ctx, r.name)
	if cerr == nil {
		cerr = c.Delete(ctx, containerd.WithSnapshotCleanup)
	}
	return errors.Join(err, derr, cerr)
}

// Delete stops all replicas of a function, and forgets it.
func (p *Provider) Delete(ctx context.Context, name string) error {
	if err := p.Scale(ctx, name, 0); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.functions, name)
	return nil
}

// Close deletes all functions, and their network.
func (p *Provider) Close(ctx context.Context) error {
	p.mu.Lock()
	var names []string
	for name := range p.functions {
		names = append(names, name)
	}
	p.mu.Unlock()
	err := each(names, func(name string) error { return p.Delete(ctx, name) })
	return errors.Join(err, p.conf.Remove(ctx, filepath.Base(confFile), network))
}

// Replicas returns the replicas of a function.
func (p *Provider) Replicas(name string) []*replica {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f := p.functions[name]; f != nil {
		return slices.Clone(f.replicas)
	}
	return nil
}

// next returns the replica whose turn it is, or nil.
func (p *Provider) next(name string) (r *replica, deployed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.functions[name]
	if f == nil || len(f.replicas) == 0 {
		return nil, f != nil
	}
	f.turn++
	return f.replicas[f.turn%len(f.replicas)], true
}

// ServeHTTP routes /function/NAME to the replicas in turn.
func (p *Provider) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	name, ok := strings.CutPrefix(req.URL.Path, "/function/")
	r, deployed := p.next(name)
	switch {
	case !ok || !deployed:
		http.NotFound(w, req)
		return
	case r == nil:
		http.Error(w, "no replica of "+name, http.StatusServiceUnavailable)
		return
	}
	proxy := httputil.ReverseProxy{Rewrite: func(pr *httputil.ProxyRequest) {
		pr.SetURL(&url.URL{Scheme: "http", Host: r.address})
		pr.Out.URL.Path = "/cgi-bin/function"
	}}
	proxy.ServeHTTP(w, req)
}

// killTask kills a replica's task as the kernel does when it is out of memory, and waits
// until it is gone.
func (p *Provider) killTask(ctx context.Context, name string) error {
	for _, r := range p.Replicas(strings.Split(name, "-")[0]) {
		if r.name != name {
			continue
		}
		exited, err := r.task.Wait(ctx)
		if err != nil {
			return err
		}
		if err := syscall.Kill(int(r.task.Pid()), syscall.SIGKILL); err != nil {
			return err
		}
		<-exited
		if _, err := os.Stat(r.netns()); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%s still has its namespace: %w", name, err)
		}
		return nil
	}
	return fmt.Errorf("no replica %s", name)
}
