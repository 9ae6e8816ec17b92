package backend_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/thick/shim"
)

var (
	kills    = flag.Int("kills", 8, "daemons to kill, with plugins in process and again with executed ones")
	killSeed = flag.Uint64("killseed", 0, "seed of the moments; 0: by the clock")
)

// TestAKilledDaemonLosesNothing: it is killed at random moments of ADD and DEL, and
// started again. The runtime that called it repeats its DEL, to the daemon or while there is
// none, with the container's namespace or after it is gone. Then nothing is left, and a
// container that lives beside it is as before.
func TestAKilledDaemonLosesNothing(t *testing.T) {
	t.Run("in process", func(t *testing.T) { killDaemons(t, false) })
	t.Run("executed", func(t *testing.T) { killDaemons(t, true) })
}

// killer kills daemons of a site.
type killer struct {
	*site
	daemon *daemon
	random *rand.Rand
	whole  map[string]time.Duration // duration of a call without a kill
	alive  string                   // path of the living container
	before audit.Lines
}

func killDaemons(t *testing.T, executed bool) {
	seed := *killSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", seed)
	k := &killer{site: newSite(t, executed), random: rand.New(rand.NewPCG(seed, 0)), whole: map[string]time.Duration{}}
	k.daemon = start(t, k.settings)
	k.alive = k.Container("alive")
	expect.Value(k.call("ADD", "alive", k.alive, 30000))(t)
	warm := k.Container("warm")
	for _, verb := range []string{"ADD", "DEL"} {
		begin := time.Now()
		expect.Value(k.call(verb, "warm", warm, 30001))(t)
		k.whole[verb] = time.Since(begin)
	}
	k.before = k.Audit()
	hits, queued := 0, 0
	for n := range *kills {
		hit, late := k.kill(n)
		hits, queued = hits+hit, queued+late
		if t.Failed() {
			break
		}
	}
	t.Logf("%d kills, %d of them before the call was answered, %d DELs from the queue", *kills, hits, queued)
	expect.Value(k.call("DEL", "alive", k.alive, 30000))(t)
	k.daemon.stop()
	left, _ := k.Left(k.before)
	expect.Same(t, "left in the end", left, audit.Lines(nil))
}

// kill kills the daemon in one ADD or DEL.
func (k *killer) kill(n int) (hit, queued int) {
	t := k.T
	t.Helper()
	verb := []string{"ADD", "DEL"}[n%2]
	vanishes, noDaemon := n/2%2 == 1, n/4%2 == 1
	id, port := fmt.Sprint("k", n), 31000+n%1000
	path := k.Path("netns", id)
	ns := expect.Value(netns.Create(path))(t)
	expect.NoError(t, ns.Close())
	if verb == "DEL" {
		expect.Value(k.call("ADD", id, path, port))(t)
	}
	delay := time.Duration(k.random.Int64N(2 * int64(k.whole[verb]))) // also after the call
	moment := fmt.Sprintf("kill %d, %s after %v, namespace gone: %v, DEL without a daemon: %v", n, verb, delay, vanishes, noDaemon)
	answered := make(chan error, 1)
	go func() { _, err := k.call(verb, id, path, port); answered <- err }()
	<-time.After(delay)
	k.daemon.kill()
	if err := expect.Await(t, "the client", answered); err != nil {
		hit = 1
	}
	if vanishes {
		expect.NoError(t, netns.Remove(path))
	}
	if noDaemon {
		k.shimDel(moment, id, path, port)
	}
	k.daemon = start(t, k.settings)
	queued = k.daemon.ended
	if !noDaemon {
		k.shimDel(moment, id, path, port)
	}
	if _, err := k.call("CHECK", "alive", k.alive, 30000); err != nil {
		t.Errorf("%s: the living container: %v", moment, err)
	}
	left, gone := k.Left(k.before)
	expect.Unchanged(t, moment, left, gone)
	k.wantForgotten(moment, id)
	if !vanishes {
		expect.NoError(t, netns.Remove(path))
	}
	return hit, queued
}

// wantForgotten checks that the records have nothing but the living container.
func (k *killer) wantForgotten(moment, id string) {
	k.T.Helper()
	found := expect.Value(k.Records().List())(k.T)
	for _, f := range found {
		if f.Err != nil || f.Record.ContainerID != "alive" {
			k.T.Errorf("%s: container %s is on record: %v", moment, f.Record.ContainerID, f.Err)
		}
	}
	if k.Pinned(id) {
		k.T.Errorf("%s: its namespace is pinned", moment)
	}
}

// shimDel is the DEL of a runtime, by the shim.
func (k *killer) shimDel(moment, id, path string, port int) {
	k.T.Helper()
	var env []string
	for name, value := range k.environment("DEL", id, path) {
		env = append(env, name+"="+value)
	}
	var out, notes bytes.Buffer
	code := shim.Run(context.Background(), shim.Options{Socket: k.Socket, QueueDir: k.Queue},
		shim.Process{Env: env, Stdin: strings.NewReader(k.config(port)), Stdout: &out, Stderr: &notes})
	if code != 0 {
		k.T.Errorf("%s: DEL: %s%s", moment, &out, &notes)
	}
}
