package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	gocni "github.com/containerd/go-cni"
	"github.com/sasha-s/go-deadlock"

	"github.com/embedcni/cni"
)

// spec is the input of a worker: one contender on its own host.
type spec struct {
	Contender contender
	Work      work
	Ports     int    // of a container that goes again
	StayPorts int    // of a container that stays
	Dir       string // the host's state, on the measured file system
	RunDir    string // the host's run-time state, on a tmpfs
	Plugins   string // the reference plugins' directory
}

func (s spec) dataDir() string { return filepath.Join(s.Dir, "ipam") }

// container is a container to attach. N is unique on a host.
type container struct {
	N       int
	Network int
	ID      string
	Path    string   // network namespace path
	Ports   []uint16 // host ports that are forwarded to the container's port 80
}

// attachment does a verb for a container on one network.
type attachment func(ctx context.Context, verb string, c container) error

// host is a running contender. It opens a network on first use, because not every
// runtime accepts a network per call.
type host struct {
	open func(n int) (attachment, error)

	mu  sync.Mutex
	all map[int]attachment
}

func newHost(s spec) (*host, error) {
	h := &host{all: make(map[int]attachment)}
	switch s.Contender.Kind {
	case kindGoCNI:
		// With the race detector go-cni's locks come from this package. With
		// this version of Go it confuses goroutines with each other.
		deadlock.Opts.Disable = true
		h.open = s.goCNI
	case kindOneLine:
		h.open = s.oneLine
	case kindDisk, kindInProcess:
		h.open = s.ours
	case kindFloor:
		if err := floorRules(s.Work); err != nil {
			return nil, err
		}
		h.open = s.floor
	case kindNetavark:
		program, err := findNetavark()
		h.open = func(int) (attachment, error) { return s.netavark(program), nil }
		return h, err
	default:
		return nil, fmt.Errorf("no contender %q", s.Contender.Kind)
	}
	return h, nil
}

func (h *host) do(ctx context.Context, verb string, c container) error {
	h.mu.Lock()
	do, ok := h.all[c.Network]
	if !ok {
		var err error
		if do, err = h.open(c.Network); err != nil {
			h.mu.Unlock()
			return err
		}
		h.all[c.Network] = do
	}
	h.mu.Unlock()
	return do(ctx, verb, c)
}

// caller is a runtime of go-cni or of this library.
type caller[O, R any] interface {
	Setup(ctx context.Context, id, path string, opts ...O) (R, error)
	Check(ctx context.Context, id, path string, opts ...O) error
	Remove(ctx context.Context, id, path string, opts ...O) error
}

// calls makes the verbs calls of a runtime. port maps a port of the host, and ports makes
// an option of them.
func calls[O, R, P any](rt caller[O, R], w work, port func(uint16) P, ports func([]P) O) attachment {
	return func(ctx context.Context, verb string, c container) error {
		var opts []O
		if w.filters() {
			var all []P
			for _, p := range c.Ports {
				all = append(all, port(p))
			}
			opts = append(opts, ports(all))
		}
		switch verb {
		case verbADD:
			_, err := rt.Setup(ctx, c.ID, c.Path, opts...)
			return err
		case verbCHECK:
			return rt.Check(ctx, c.ID, c.Path, opts...)
		}
		return rt.Remove(ctx, c.ID, c.Path, opts...)
	}
}

// goCNI is containerd/go-cni with the reference plugins.
func (s spec) goCNI(n int) (attachment, error) {
	rt, err := gocni.New(gocni.WithPluginDir([]string{s.Plugins}), gocni.WithInterfacePrefix("eth"))
	if err != nil {
		return nil, err
	}
	load := gocni.Opt(gocni.WithLoNetwork)
	if s.Work != workLoopback {
		conf, err := conflist(s.Work, s.Contender.Backend, n, s.dataDir())
		if err != nil {
			return nil, err
		}
		load = gocni.WithConfListBytes(conf)
	}
	port := func(p uint16) gocni.PortMapping {
		return gocni.PortMapping{HostPort: int32(p), ContainerPort: 80, Protocol: "tcp"}
	}
	return calls[gocni.NamespaceOpts, *gocni.Result](rt, s.Work, port, gocni.WithCapabilityPortMap), rt.Load(load)
}

// oneLine is a program that was written for go-cni, after the change of its import
// line: the options of goCNI, and nothing of this module's.
func (s spec) oneLine(n int) (attachment, error) {
	return s.runtime(n, cni.WithPluginDir([]string{s.Plugins}), cni.WithInterfacePrefix("eth"))
}

// ours is this library. A call also fails if one of its plugins fails and the sweep cleans up:
// the benchmark measures the plugins' DELs.
func (s spec) ours(n int) (attachment, error) {
	var failed sync.Map // the errors of plugins, by container
	opts := []cni.Opt{
		cni.WithStateDir(filepath.Join(s.Dir, "state")), cni.WithOwner("bench"),
		cni.WithObserver(func(_ context.Context, e cni.Event) {
			if e.Err != nil {
				failed.Store(e.ContainerID, e.Err)
			}
		}),
	}
	// An empty directory, in case the library searches for an executable.
	plugins := filepath.Join(s.Dir, "no-plugins")
	if s.Contender.Kind == kindDisk {
		plugins = s.Plugins
	} else {
		opts = append(opts, cni.WithBuiltinPlugins())
	}
	do, err := s.runtime(n, append(opts, cni.WithPluginDir([]string{plugins}))...)
	return func(ctx context.Context, verb string, c container) error {
		err := do(ctx, verb, c)
		if why, ok := failed.LoadAndDelete(c.ID); ok && err == nil {
			err = why.(error)
		}
		return err
	}, err
}

func (s spec) runtime(n int, opts ...cni.Opt) (attachment, error) {
	rt, err := cni.New(opts...)
	if err != nil {
		return nil, err
	}
	load := cni.Opt(cni.WithLoNetwork)
	if s.Work != workLoopback {
		conf, err := conflist(s.Work, s.Contender.Backend, n, s.dataDir())
		if err != nil {
			return nil, err
		}
		load = cni.WithConfListBytes(conf)
	}
	port := func(p uint16) cni.PortMapping {
		return cni.PortMapping{HostPort: int32(p), ContainerPort: 80, Protocol: "tcp"}
	}
	return calls[cni.NamespaceOpts, *cni.Result](rt, s.Work, port, cni.WithCapabilityPortMap), rt.Load(load)
}

// findNetavark searches the directories that distributions use. They are not in
// PATH.
func findNetavark() (string, error) {
	for _, dir := range slices.Concat([]string{"/usr/lib/podman", "/usr/libexec/podman"}, filepath.SplitList(os.Getenv("PATH"))) {
		path := filepath.Join(dir, "netavark")
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
			return path, nil
		}
	}
	return "", errors.New("netavark: not installed")
}

// netavark is Podman's executable, which has a protocol of its own.
func (s spec) netavark(program string) attachment {
	return func(ctx context.Context, verb string, c container) error {
		conf, err := netavarkConfig(c)
		if err != nil {
			return err
		}
		command := map[string]string{verbADD: "setup", verbDEL: "teardown"}[verb]
		cmd := exec.CommandContext(ctx, program, "--config", filepath.Join(s.RunDir, "netavark"), command, c.Path)
		cmd.Stdin = strings.NewReader(string(conf))
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("netavark %s: %w: %s", command, err, out)
		}
		return nil
	}
}
