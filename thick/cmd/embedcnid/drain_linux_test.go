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

// gated is the script of a plugin whose verb waits until a file exists. It writes a dot to
// another one when it begins.
func gated(verb, gate string) string {
	return fmt.Sprintf("if [ \"$CNI_COMMAND\" = %s ]; then\n\tprintf . >>%s.reached\n\twhile [ ! -e %s ]; do sleep 0.02; done\nfi\n%s", verb, gate, gate, added)
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
// the same container waits.
func TestAQueuedDELThatHangs(t *testing.T) {
	s, ctx := newSite(t), t.Context()
	gate := s.path("gate")
	s.plugin("gated", gated("DEL", gate))
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
	again := s.inBackground(ctx, hangs)
	expect.NoError(t, os.WriteFile(gate, nil, 0o644))
	p.logged("queued DEL", `"outcome":"ended"`, `"container":"hangs"`)
	expect.NoError(t, expect.Await(t, "the ADD", again), s.cni.CheckNetworkList(ctx, s.list(), hangs), s.del(ctx, hangs))
	wantReadyWith(t)
	expect.Same(t, "exit code", p.end(syscall.SIGTERM), 0)
}

// TestAQueuedDELThatFails: one whose plugin hangs once ends in its second turn, and one whose
// plugin fails when that is mended. Both have no effect on a third.
func TestAQueuedDELThatFails(t *testing.T) {
	s, ctx := newSite(t), t.Context()
	once, mended := s.path("once"), s.path("mended")
	s.plugin("hangs", fmt.Sprintf("if [ \"$CNI_COMMAND\" = DEL ] && [ ! -e %s ]; then : >%s; exec sleep 1000; fi\n%s", once, once, added))
	s.plugin("fails", fmt.Sprintf("[ \"$CNI_COMMAND\" != DEL ] || [ -e %s ] || { echo '{\"cniVersion\": \"1.0.0\", \"code\": 103, \"msg\": \"never\"}'; exit 1; }\n%s", mended, added))
	s.config["timeouts"] = map[string]any{"del": "2s"}
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
		return strings.Contains(text, "[!]drained: 1 DELs failed, and are tried again in ")
	})
	queue := s.config["queueDir"].(string)
	expect.NoError(t, os.Chmod(queue, 0o777))
	p.find("queued DELs are not tried again", "not private")
	expect.NoError(t, os.Chmod(queue, 0o700), os.WriteFile(mended, nil, 0o644))
	p.find("queued DEL", `"level":"INFO"`, `"container":"fails"`) // or else its removal was repeated before
	expect.Eventually(t, "all conditions", func() bool {
		_, text := get(t, "/readyz")
		return text == allReady
	})
	expect.Same(t, "exit code", p.end(syscall.SIGTERM), 0)
}

// TestARecoveryThatHangs keeps the daemon from serving for five seconds, and from ending not at
// all: of one container the plugin hangs, of another one it is the shim, and waits until the
// daemon serves. Afterwards calls that would wait for themselves are still refused.
func TestARecoveryThatHangs(t *testing.T) {
	s, ctx := newSite(t), t.Context()
	gate, never := s.path("gate"), s.path("never")
	s.plugin("gated", gated("DEL", gate))
	s.plugin("inner", gated("ADD", never))
	s.WriteConf("30-inner.conflist", fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "inner", "plugins": [{"type": "inner", "daemonSocketDir": %q}]}`, s.path("run")))
	s.config["shutdownGrace"] = "10ms"
	s.write()
	p := s.start()
	cut, asks := s.container("cut", "gated,inner"), s.container("asks", "inner")
	adds := []<-chan error{s.inBackground(ctx, cut), s.inBackground(ctx, asks)}
	expect.Eventually(t, "the ADDs", func() bool {
		reached, err := os.ReadFile(never + ".reached")
		return err == nil && len(reached) == 2
	})
	expect.Same(t, "exit code", p.end(syscall.SIGKILL), -1)
	for _, done := range adds {
		expect.Fails(t, "an ADD whose daemon was killed", expect.Await(t, "the ADD", done))
	}
	plugin := filepath.Join(s.PluginDir, "inner")
	expect.NoError(t, os.Remove(plugin), os.Symlink(filepath.Join(os.Getenv(shimVariable), "embedcni-shim"), plugin))
	begin := time.Now()
	p = s.start()
	t.Logf("it serves after %v", time.Since(begin).Round(time.Millisecond))
	p.logged("dead containers are still being removed")
	wantReadyWith(t, "[!]recovered: dead containers are being removed")
	expect.Eventually(t, "the DEL that hangs", func() bool { return expect.Exists(t, gate+".reached") })
	other := s.container("other", "storage")
	expect.Value(s.add(ctx, other))(t)
	expect.NoError(t, s.cni.CheckNetworkList(ctx, s.list(), other))
	_, err := s.add(ctx, asks)
	expect.Says(t, "an ADD that asks its own daemon", err, `network "inner" asks the daemon that runs its plugins`)
	expect.NoError(t, s.del(ctx, asks))
	expect.Same(t, "exit code", p.end(syscall.SIGTERM), 0)

	expect.NoError(t, os.WriteFile(gate, nil, 0o644), os.Remove(plugin))
	s.plugin("inner", "exit 1") // one that fails now, and is mended
	p = s.start()
	p.logged("a dead container could not be removed", `"container":"cut"`)
	s.plugin("inner", added)
	p.logged("a removal that failed was repeated", `"container":"cut"`)
	expect.Same(t, "interfaces", interfaces(t, cut), []string{"lo"})
	expect.NoError(t, s.cni.CheckNetworkList(ctx, s.list(), other), s.del(ctx, other))
	expect.Same(t, "exit code", p.end(syscall.SIGTERM), 0)
}

// TestARepeatedRemovalThatHangs keeps the daemon no longer than the grace from ending. The next one
// removes the container.
func TestARepeatedRemovalThatHangs(t *testing.T) {
	s, ctx := newSite(t), t.Context()
	added, hangs := s.path("added"), s.path("hangs")
	s.plugin("gated", gated("ADD", added))
	s.config["shutdownGrace"] = "10ms"
	s.write()
	p := s.start()
	cut := s.inBackground(ctx, s.container("cut", "gated"))
	expect.Eventually(t, "the ADD", func() bool { return expect.Exists(t, added+".reached") })
	expect.Same(t, "exit code", p.end(syscall.SIGKILL), -1)
	expect.Fails(t, "an ADD whose daemon was killed", expect.Await(t, "the ADD", cut))
	s.plugin("gated", "exit 1")
	p = s.start()
	p.logged("a dead container could not be removed", `"container":"cut"`)
	s.plugin("gated", gated("DEL", hangs))
	expect.Eventually(t, "the removal", func() bool { return expect.Exists(t, hangs+".reached") })
	expect.Same(t, "exit code", p.end(syscall.SIGTERM), 0)
	expect.Contains(t, "log", p.rest(), `"msg":"dead containers are still being removed"`)
	expect.NoError(t, os.WriteFile(hangs, nil, 0o644))
	p = s.start()
	p.logged("recovered", `"removed":1`)
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
