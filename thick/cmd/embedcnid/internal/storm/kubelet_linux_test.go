package storm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netns"
)

// pod is a pod that kubelet wants to run.
type pod struct {
	name    string
	config  *runtimeapi.PodSandboxConfig
	id, ip  string
	probing sync.RWMutex // held while its address is asked, and while it ends
	ended   bool
}

// kubelet asks containerd for sandboxes as the real one does: again, until it succeeds.
type kubelet struct {
	*node
	sync.Mutex
	serial  int
	alive   map[string]*pod // by name: those whose addresses must answer
	busy    sync.WaitGroup
	figures figures
	harmed  []string
	probes  atomic.Int64
}

// figures are printed at the end.
type figures struct {
	ran, refused, recovered, ended, again int
	longest                               time.Duration // from the first request to the sandbox
}

func newKubelet(n *node) *kubelet { return &kubelet{node: n, alive: map[string]*pod{}} }

// repeat calls until there is no error, and returns how many there were.
func (k *kubelet) repeat(what string, call func(context.Context, runtimeapi.RuntimeServiceClient) error) (failed int) {
	begin, last := time.Now(), error(nil)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for ; time.Since(begin) < 2*expect.Patience; <-tick.C {
		ctx, cancel := context.WithTimeout(k.t.Context(), 2*expect.Patience)
		last = call(ctx, k.client())
		cancel()
		if last == nil {
			return failed
		}
		failed++
	}
	k.t.Errorf("%s has not succeeded, %d times: %v", what, failed, last)
	return failed
}

// run has a sandbox run. Every second one has a port of the host.
func (k *kubelet) run() {
	defer k.busy.Done()
	k.Lock()
	k.serial++
	p := &pod{name: fmt.Sprint("pod-", k.serial)}
	serial := k.serial
	k.Unlock()
	p.config = &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: p.name, Uid: "uid-" + p.name, Namespace: "storm"},
		Hostname: p.name, Linux: &runtimeapi.LinuxPodSandboxConfig{CgroupParent: "/" + cgroupName()},
	}
	if serial%2 == 0 {
		p.config.PortMappings = []*runtimeapi.PortMapping{{ContainerPort: answersAt, HostPort: int32(20000 + serial)}}
	}
	begin := time.Now()
	failed := k.repeat("RunPodSandbox of "+p.name, func(ctx context.Context, c runtimeapi.RuntimeServiceClient) error {
		boot := k.boots.Load()
		answer, err := c.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: p.config})
		if err != nil {
			p.config.Metadata.Attempt++
			return err
		}
		status, err := c.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: answer.PodSandboxId})
		if err != nil {
			return err
		}
		p.id, p.ip = answer.PodSandboxId, status.Status.Network.GetIp()
		if p.ip != "" {
			k.listens(p)
		}
		k.Lock()
		defer k.Unlock()
		if p.ip == "" || boot != k.boots.Load() {
			p.config.Metadata.Attempt++
			return fmt.Errorf("sandbox %s is %v, and has the address %q", p.id, status.Status.State, p.ip)
		}
		k.alive[p.name] = p
		return nil
	})
	k.Lock()
	defer k.Unlock()
	k.figures.ran++
	k.figures.refused += failed
	k.figures.recovered += min(failed, 1)
	k.figures.longest = max(k.figures.longest, time.Since(begin))
}

// listens waits until the program in a sandbox listens. Until then the sandbox itself refuses.
func (k *kubelet) listens(p *pod) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for begin := time.Now(); errors.Is(k.ask(p), unix.ECONNREFUSED) && time.Since(begin) < expect.Patience; {
		<-tick.C
	}
}

// take chooses living pods, whose addresses need not answer from now on.
func (k *kubelet) take(most int) (taken []*pod) {
	k.Lock()
	defer k.Unlock()
	for name, p := range k.alive {
		if len(taken) < most {
			delete(k.alive, name)
			taken = append(taken, p)
		}
	}
	for _, p := range taken {
		p.probing.Lock()
		p.ended = true
		p.probing.Unlock()
	}
	return taken
}

// end stops and removes a sandbox.
func (k *kubelet) end(id string) {
	defer k.busy.Done()
	failed := k.repeat("StopPodSandbox of "+id, func(ctx context.Context, c runtimeapi.RuntimeServiceClient) error {
		_, err := c.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
		return err
	})
	failed += k.repeat("RemovePodSandbox of "+id, func(ctx context.Context, c runtimeapi.RuntimeServiceClient) error {
		_, err := c.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
		return err
	})
	k.Lock()
	defer k.Unlock()
	k.figures.ended++
	k.figures.again += failed
}

// begin calls do n times at once.
func (k *kubelet) begin(n int, do func()) {
	k.busy.Add(n)
	for range n {
		go do()
	}
}

func (k *kubelet) endAll(pods []*pod) {
	k.busy.Add(len(pods))
	for _, p := range pods {
		go k.end(p.id)
	}
}

// collect ends sandboxes that no living pod has: those of failed attempts, and of the time
// before a reboot.
func (k *kubelet) collect() {
	var found []*runtimeapi.PodSandbox
	k.repeat("ListPodSandbox", func(ctx context.Context, c runtimeapi.RuntimeServiceClient) error {
		answer, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		found = answer.GetItems()
		return err
	})
	k.Lock()
	wanted := map[string]bool{}
	for _, p := range k.alive {
		wanted[p.id] = true
	}
	k.Unlock()
	for _, s := range found {
		if !wanted[s.Id] {
			k.busy.Add(1)
			go k.end(s.Id)
		}
	}
	k.busy.Wait()
}

// probe asks the addresses of all living pods until the context ends.
func (k *kubelet) probe(ctx context.Context) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for ; ctx.Err() == nil; <-tick.C {
		k.Lock()
		var all []*pod
		for _, p := range k.alive {
			all = append(all, p)
		}
		k.Unlock()
		for _, p := range all {
			if err := k.ask(p); err != nil {
				k.Lock()
				k.harmed = append(k.harmed, fmt.Sprintf("%s %s: %v", p.name, p.ip, err))
				k.Unlock()
			}
		}
	}
}

// ask connects to the address of a pod and, if it has one, to its port of the host.
func (k *kubelet) ask(p *pod) error {
	p.probing.RLock()
	defer p.probing.RUnlock()
	if p.ended {
		return nil
	}
	k.probes.Add(1)
	targets := []string{net.JoinHostPort(p.ip, strconv.Itoa(answersAt))}
	for _, m := range p.config.PortMappings {
		gateway := net.ParseIP(p.ip).To4().Mask(net.CIDRMask(24, 32))
		gateway[3] = 1
		targets = append(targets, net.JoinHostPort(gateway.String(), strconv.Itoa(int(m.HostPort))))
	}
	return netns.Do(k.host, func() error {
		for _, target := range targets {
			conn, err := net.DialTimeout("tcp", target, expect.Patience)
			if err != nil {
				return err
			}
			if err := conn.Close(); err != nil {
				return err
			}
		}
		return nil
	})
}
