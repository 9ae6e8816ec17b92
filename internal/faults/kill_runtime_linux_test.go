package faults_test

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netns"
)

// killsPerHost is the number of runtimes killed on one host. A leak that one
// audit cannot see adds up until another can.
const killsPerHost = 8

// killRuntimes is M1: a runtime is killed at some point of ADD or DEL, and
// another one recovers.
func (b *board) killRuntimes(t *testing.T) {
	b.kills(t, "M1", "runtime killed in ADD or DEL, recovered", false, func(h *host, _ int) settings { return h.settings(1) })
}

// killRuntimesInProcess is M1 with built-in plugins, which are killed with the
// runtime.
func (b *board) killRuntimesInProcess(t *testing.T) {
	b.kills(t, "M1", "the same, with the plugins built in", false, func(h *host, n int) settings {
		if n%2 == 1 {
			return h.overFlannel()
		}
		return h.inProcess("")
	})
}

// killRuntimesThatMakeNetNS is M1 with namespaces that ADD makes and DEL deletes.
func (b *board) killRuntimesThatMakeNetNS(t *testing.T) {
	b.kills(t, "M1", "the same, in namespaces that ADD makes", true, func(h *host, n int) settings {
		if n%2 == 0 {
			return h.settings(1)
		}
		return h.inProcess("")
	})
}

func (b *board) kills(t *testing.T, name, what string, makes bool, made func(h *host, n int) settings) {
	var c count
	onHosts(t, *runtimeKills, killsPerHost, func(t *testing.T, first, end int) {
		k := newRuntimeKiller(t, makes, b.random(uint64(first)), func(h *host) settings { return made(h, first/killsPerHost) })
		for n := first; n < end; n++ {
			c.add("kills", 1)
			if k.kill(n) {
				c.add("in the middle", 1)
			}
		}
		c.add("leaks", k.leaks)
	})
	b.figure(t, name, what,
		fmt.Sprintf("%d leaks in %d kills (%d in the middle)", c.get("leaks"), c.get("kills"), c.get("in the middle")),
		"0 of 1000", c.get("leaks") == 0)
}

type runtimeKiller struct {
	*host
	makes    bool // ADD makes the namespaces
	settings settings
	random   *rand.Rand
	whole    map[string]time.Duration // duration of a job without a fault
	before   audit.Lines
	leaks    int
}

func newRuntimeKiller(t *testing.T, makes bool, random *rand.Rand, made func(*host) settings) *runtimeKiller {
	k := &runtimeKiller{host: newHost(t), makes: makes, random: random, whole: map[string]time.Duration{}}
	k.settings = made(k.host)
	j := job{ID: "warm", NetNS: k.home("warm", 0), Makes: makes, Port: 9000, Settings: k.settings}
	for _, verb := range []string{"ADD", "DEL"} {
		j.Verb = verb
		p := begin(t, j)
		start := time.Now()
		killed, said := p.wait()
		expect.Must(t, !killed && said == "", "%s without a fault: %s", verb, said)
		k.whole[verb] = time.Since(start)
	}
	expect.NoError(t, netns.Remove(j.NetNS))
	k.before = k.audit()
	return k
}

// home returns the path of a container's namespace, for the number of the kill: of one
// that exists, or of one that ADD is to make, empty if it chooses the path too.
func (k *runtimeKiller) home(id string, n int) string {
	switch {
	case !k.makes:
		return k.container(id)
	case n/4%2 == 0:
		return k.netns(id)
	}
	return ""
}

// kill kills one runtime and reports whether it was still at work.
func (k *runtimeKiller) kill(n int) (hit bool) {
	k.t.Helper()
	verb := []string{"ADD", "DEL"}[n%2]
	vanishes := n/2%2 == 1
	j := job{ID: fmt.Sprintf("m1-%d", n), Makes: k.makes, Port: int32(10000 + n), Settings: k.settings}
	j.NetNS = k.home(j.ID, n)
	if verb == "DEL" {
		j.Verb = "ADD"
		expect.NoError(k.t, elsewhere(k.t, j))
	}
	j.Verb = verb
	delay := time.Duration(k.random.Int64N(int64(k.whole[verb])))
	p := begin(k.t, j)
	<-time.After(delay)
	hit = p.kill()
	if vanishes && j.NetNS != "" {
		expect.NoError(k.t, netns.Remove(j.NetNS))
	}
	err := elsewhere(k.t, job{Verb: "RECOVER", Settings: k.settings})
	left := k.left(k.before, j.ID)
	if err != nil || len(left) > 0 {
		k.leaks++
		k.t.Errorf("kill %d, %s after %v, namespace gone: %v: recovery: %v; left:\n%s",
			n, verb, delay, vanishes, err, strings.Join(left, "\n"))
		k.before = k.audit() // count each leak once
	}
	if k.makes {
		if _, err := os.Lstat(j.NetNS); j.NetNS != "" && !errors.Is(err, fs.ErrNotExist) {
			k.leaks++
			k.t.Errorf("kill %d, %s after %v: %s is left: %v", n, verb, delay, j.NetNS, err)
		}
		return hit
	}
	err = netns.Remove(j.NetNS)
	expect.Must(k.t, err == nil || errors.Is(err, netns.ErrNotNetNS), "%v", err)
	return hit
}
