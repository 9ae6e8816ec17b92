package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/cnitest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

var (
	drainRounds = flag.Int("drainrounds", 4, "starts of a daemon with DELs in the queue")
	drainSeed   = flag.Uint64("drainseed", 0, "seed of the rounds; 0: by the clock")
)

// added is the script of a plugin that has no effect.
const added = `[ "$CNI_COMMAND" != ADD ] || echo '{"cniVersion": "1.0.0"}'` + "\n"

// gated is the script of a plugin whose verb waits until a file exists. It notes its beginning
// in another one.
func gated(verb, gate string) string {
	return fmt.Sprintf("if [ \"$CNI_COMMAND\" = %s ]; then\n\t: >>%s.reached\n\twhile [ ! -e %s ]; do sleep 0.02; done\nfi\n%s", verb, gate, gate, added)
}

// inBackground adds a container.
func (s *site) inBackground(ctx context.Context, c *libcni.RuntimeConf) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := s.add(ctx, c)
		done <- err
	}()
	return done
}

// wantReadyWith compares the conditions that are not met.
func wantReadyWith(t *testing.T, lines ...string) {
	t.Helper()
	status, text := get(t, "/readyz")
	var found []string
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "[+]") {
			found = append(found, strings.TrimSpace(line))
		}
	}
	expect.Same(t, "status of /readyz", status, 200)
	expect.Same(t, "conditions", found, lines)
}

// TestAQueuedDELThatHangs: the daemon is ready, serves other containers, and reloads. An ADD of
// the same container waits. A shutdown leaves the DEL to the next daemon.
func TestAQueuedDELThatHangs(t *testing.T) {
	s, ctx := newSite(t), t.Context()
	gate := s.path("gate")
	s.plugin("gated", gated("DEL", gate))
	s.config["shutdownGrace"] = "10ms"
	s.write()
	p := s.start()
	hangs, ends := s.container("hangs", "gated"), s.container("ends", "storage")
	for _, c := range []*libcni.RuntimeConf{hangs, ends} {
		expect.Value(s.add(ctx, c))(t)
	}
	expect.Same(t, "exit code", p.end(syscall.SIGKILL), -1)
	expect.NoError(t, s.del(ctx, hangs), s.del(ctx, ends))
	begin := time.Now()
	p = s.start()
	t.Logf("it serves after %v", time.Since(begin).Round(time.Millisecond))
	expect.Eventually(t, "the DEL that hangs", func() bool { return expect.Exists(t, gate+".reached") })
	expect.Eventually(t, "the end of the other DEL", func() bool { return len(interfaces(t, ends)) == 1 })
	wantReadyWith(t, "[!]drained: queued DELs are being carried out")
	expect.NoError(t, s.cni.GetStatusNetworkList(ctx, s.list()))
	for _, c := range []*libcni.RuntimeConf{ends, s.container("new", "")} {
		expect.Value(s.add(ctx, c))(t)
		expect.NoError(t, s.cni.CheckNetworkList(ctx, s.list(), c), s.del(ctx, c))
	}
	expect.NoError(t, p.Process.Signal(syscall.SIGHUP))
	p.find("configuration reloaded")
	expect.Same(t, "exit code", p.end(syscall.SIGTERM), 1)
	expect.Contains(t, "log", p.rest(), "embedcnid: 1 calls were cancelled, 1 of them have not ended")

	again := s.inBackground(ctx, hangs)
	p = s.start()
	expect.NoError(t, os.WriteFile(gate, nil, 0o644))
	p.logged("queued DEL", `"outcome":"ended"`, `"container":"hangs"`)
	expect.NoError(t, expect.Await(t, "the ADD", again), s.cni.CheckNetworkList(ctx, s.list(), hangs), s.del(ctx, hangs))
	wantReadyWith(t)
	expect.Same(t, "exit code", p.end(syscall.SIGTERM), 0)
}

// TestAQueuedDELThatFails: one whose plugin hangs once ends in its second turn; one whose plugin
// always fails stays in the queue, and both have no effect on a third.
func TestAQueuedDELThatFails(t *testing.T) {
	s, ctx := newSite(t), t.Context()
	once, mended := s.path("once"), s.path("mended")
	s.plugin("hangs", fmt.Sprintf("if [ \"$CNI_COMMAND\" = DEL ] && [ ! -e %s ]; then : >%s; exec sleep 1000; fi\n%s", once, once, added))
	s.plugin("fails", fmt.Sprintf("[ \"$CNI_COMMAND\" != DEL ] || [ -e %s ] || { echo '{\"cniVersion\": \"1.0.0\", \"code\": 103, \"msg\": \"never\"}'; exit 1; }\n%s", mended, added))
	s.config["timeouts"] = map[string]any{"del": "3s"}
	s.write()
	p := s.start()
	all := []*libcni.RuntimeConf{s.container("hangs", "hangs"), s.container("fails", "fails"), s.container("ends", "")}
	for _, c := range all {
		expect.Value(s.add(ctx, c))(t)
	}
	expect.Same(t, "exit code", p.end(syscall.SIGKILL), -1)
	for _, c := range all {
		expect.NoError(t, s.del(ctx, c))
	}
	p = s.start()
	p.logged("queued DEL", `"outcome":"ended"`, `"container":"hangs"`)
	p.logged("queued DEL", `"outcome":"ended"`, `"container":"ends"`)
	p.logged("queued DEL", `"outcome":"failed"`, `"container":"fails"`, "never (code 103)")
	expect.Eventually(t, "the condition", func() bool {
		_, text := get(t, "/readyz")
		return strings.Contains(text, "[!]drained: 1 DELs failed, and stay in the queue for the next start\n")
	})
	expect.NoError(t, os.WriteFile(mended, nil, 0o644))
	expect.Same(t, "exit code", p.end(syscall.SIGTERM), 0)
	p = s.start()
	p.logged("queued DEL", `"outcome":"ended"`, `"container":"fails"`)
	expect.Same(t, "exit code", p.end(syscall.SIGTERM), 0)
}

// TestARecoveryThatHangs keeps the daemon from serving for five seconds, and from ending not at
// all. The next daemon goes on.
func TestARecoveryThatHangs(t *testing.T) {
	s, ctx := newSite(t), t.Context()
	gate := s.path("gate")
	s.plugin("gated", gated("DEL", gate))
	s.plugin("cut", gated("ADD", s.path("never")))
	s.config["shutdownGrace"] = "10ms"
	s.write()
	p := s.start()
	c := s.container("cut", "gated,cut")
	added := s.inBackground(ctx, c)
	expect.Eventually(t, "the ADD", func() bool { return expect.Exists(t, s.path("never.reached")) })
	expect.Same(t, "exit code", p.end(syscall.SIGKILL), -1)
	expect.Fails(t, "an ADD whose daemon was killed", expect.Await(t, "the ADD", added))
	begin := time.Now()
	p = s.start()
	t.Logf("it serves after %v", time.Since(begin).Round(time.Millisecond))
	p.logged("dead containers are still being removed")
	wantReadyWith(t, "[!]recovered: dead containers are being removed")
	other := s.container("other", "storage")
	expect.Value(s.add(ctx, other))(t)
	expect.NoError(t, s.cni.CheckNetworkList(ctx, s.list(), other))
	expect.Eventually(t, "the DEL that hangs", func() bool { return expect.Exists(t, gate+".reached") })
	expect.Same(t, "exit code", p.end(syscall.SIGTERM), 0)
	expect.NoError(t, os.WriteFile(gate, nil, 0o644))
	p = s.start()
	p.logged("recovered", `"adopted":1`, `"removed":1`)
	expect.Same(t, "interfaces", interfaces(t, c), []string{"lo"})
	expect.NoError(t, s.cni.CheckNetworkList(ctx, s.list(), other), s.del(ctx, other))
	expect.Same(t, "exit code", p.end(syscall.SIGTERM), 0)
}

// TestARecoveryThatAsksTheDaemon, since a network's plugin is the shim: it waits until the daemon
// serves. A call that would wait for itself is refused afterwards too.
func TestARecoveryThatAsksTheDaemon(t *testing.T) {
	s, ctx := newSite(t), t.Context()
	s.plugin("inner", gated("ADD", s.path("never")))
	s.WriteConf("30-inner.conflist", fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "inner", "plugins": [{"type": "inner", "daemonSocketDir": %q}]}`, s.path("run")))
	p := s.start()
	c := s.container("cut", "inner")
	added := s.inBackground(ctx, c)
	expect.Eventually(t, "the ADD", func() bool { return expect.Exists(t, s.path("never.reached")) })
	expect.Same(t, "exit code", p.end(syscall.SIGKILL), -1)
	expect.Fails(t, "an ADD whose daemon was killed", expect.Await(t, "the ADD", added))
	plugin := filepath.Join(s.PluginDir, "inner")
	expect.NoError(t, os.Remove(plugin), os.Symlink(filepath.Join(os.Getenv(shimVariable), "embedcni-shim"), plugin))
	p = s.start()
	p.logged("recovered", `"removed":1`)
	_, err := s.add(ctx, c)
	expect.Says(t, "an ADD that asks its own daemon", err, `network "inner" asks the daemon that runs its plugins`)
	expect.NoError(t, s.del(ctx, c))
	expect.Same(t, "exit code", p.end(syscall.SIGTERM), 0)
}

// TestNoADDBesideADrainIsRefused, and none is ended: DELs of many containers are queued while no
// daemon runs, and their ADDs are asked for before the next one serves, in the same namespaces or
// in others. In some rounds that one is killed at once. Then an ADD may fail, and the next daemon
// ends none that did not.
func TestNoADDBesideADrainIsRefused(t *testing.T) {
	seed := *drainSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	s, ctx := newSite(t), t.Context()
	s.plugin("takes", "[ \"$CNI_COMMAND\" != DEL ] || sleep 0.1\n"+added)
	s.config["limits"] = map[string]any{"concurrent": 1} // most DELs have not ended when it serves
	s.write()
	p := s.start()
	all := make([]*libcni.RuntimeConf, 8)
	for i := range all {
		all[i] = s.container(fmt.Sprint("c", i), []string{"takes", "storage,takes"}[i%2])
		expect.Value(s.add(ctx, all[i]))(t)
	}
	failed := 0
	for round := range *drainRounds {
		p.end(syscall.SIGKILL)
		var again []*libcni.RuntimeConf
		for _, c := range all {
			if random.IntN(4) > 0 {
				expect.NoError(t, s.del(ctx, c))
				again = append(again, c)
				if random.IntN(2) == 0 {
					c.NetNS = cnitest.Container(t)
				}
			}
		}
		refused := make([]error, len(again))
		asked := make(chan error, 1)
		go func() {
			asked <- testhost.InParallel(len(again), func(i int) error {
				_, refused[i] = s.add(ctx, again[i])
				return nil
			})
		}()
		p = s.start()
		killed := random.IntN(2) == 0
		if killed {
			<-time.After(time.Duration(random.Int64N(int64(200 * time.Millisecond))))
			p.end(syscall.SIGKILL)
			p = s.start()
		}
		expect.NoError(t, expect.Await(t, "the ADDs", asked))
		for i, err := range refused {
			if err == nil {
				continue
			}
			failed++
			expect.That(t, killed, "round %d: the ADD of %s is refused: %v", round, again[i].ContainerID, err)
			expect.NoError(t, s.del(ctx, again[i]), expect.Err(s.add(ctx, again[i])))
		}
		expect.Eventually(t, "the queue is empty", func() bool {
			return len(expect.Value(filepath.Glob("/var/lib/embedcni/dels/*.del"))(t)) == 0
		})
		for _, c := range all {
			expect.Succeeds(t, fmt.Sprintf("round %d: CHECK of %s", round, c.ContainerID), s.cni.CheckNetworkList(ctx, s.list(), c))
		}
		if t.Failed() {
			break
		}
	}
	t.Logf("%d rounds, %d ADDs failed because the daemon was killed", *drainRounds, failed)
	for _, c := range all {
		expect.NoError(t, s.del(ctx, c))
	}
	expect.Same(t, "exit code", p.end(syscall.SIGTERM), 0)
}
