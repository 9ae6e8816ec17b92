package faults_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netns"
)

// longestPlugin is roughly a reference plugin's duration. A random moment below
// it usually falls into the middle of the plugin.
const longestPlugin = 80 * time.Millisecond

// subject is one container on one host, the target of faults.
type subject struct {
	*host
	board   *board
	random  *rand.Rand
	runtime *cni.Runtime
	brief   *cni.Runtime // its plugins' time limit is hangs
	before  audit.Lines
	leaks   int
}

func (b *board) subject(t *testing.T, stream uint64, networks int) *subject {
	s := &subject{host: newHost(t), board: b, random: b.random(stream)}
	set := s.settings(networks)
	s.runtime = s.host.runtime(set)
	set.Timeouts = cni.Timeouts{Add: hangs, Del: hangs, Check: hangs}
	s.brief = s.host.runtime(set)
	path := s.container("warm")
	expect.Value(s.runtime.Setup(context.Background(), "warm", path, ports(9000)...))(t)
	expect.NoError(t, s.runtime.Remove(context.Background(), "warm", path))
	expect.NoError(t, netns.Remove(path))
	s.before = s.audit()
	return s
}

// hangs limits a plugin's time in faults that hang. On a busy machine it may
// also end a healthy plugin. That is one more fault, which must not leave
// anything behind either.
const hangs = 2 * time.Second

// remove detaches the container for good, with healthy plugins. A leftover is a
// leak, and also a lie if Remove returned nil.
func (s *subject) remove(what, id string) { s.t.Helper(); s.removeBy(s.runtime, what, id) }

// removeBy is remove whose first call is made by that runtime.
func (s *subject) removeBy(r *cni.Runtime, what, id string) {
	s.t.Helper()
	ctx := context.Background()
	err := r.Remove(ctx, id, s.netns(id))
	left := s.left(s.before, id)
	if err == nil {
		s.board.removed(len(left))
	}
	if unsaid := (*cni.LeftoverError)(nil); err != nil && len(left) > 0 && !errors.As(err, &unsaid) && s.plain(err) {
		s.t.Errorf("%s: Remove: %v; it does not name the leftovers:\n%s", what, err, strings.Join(left, "\n"))
	}
	s.heal()
	if err != nil {
		if err = s.runtime.Remove(ctx, id, s.netns(id)); err == nil {
			left = s.left(s.before, id)
			s.board.removed(len(left))
		}
	}
	s.wantNothing(what, err, left)
	expect.NoError(s.t, netns.Remove(s.netns(id)))
}

// plain reports whether an error does not come from a plugin. A plugin's error
// names the DEL to repeat.
func (s *subject) plain(err error) bool {
	var e *cni.Error
	return !errors.As(err, &e)
}

func (s *subject) wantNothing(what string, err error, left audit.Lines) {
	s.t.Helper()
	if err == nil && len(left) == 0 {
		return
	}
	s.leaks++
	s.t.Errorf("%s: %v; left:\n%s", what, err, strings.Join(left, "\n"))
	s.before = s.audit() // count each leak once
}

// killPlugins is M2: a plugin is killed at some point of ADD or DEL.
func (b *board) killPlugins(t *testing.T) {
	var c count
	onHosts(t, 2**pluginKills, 10, func(t *testing.T, first, end int) {
		s := b.subject(t, 1<<32+uint64(first), 1)
		for n := first; n < end; n++ {
			s.killPlugin(n, &c)
		}
		c.add("leaks", s.leaks)
	})
	b.figure(t, "M2", "plugin killed in ADD and in DEL",
		fmt.Sprintf("%d leaks in %d + %d kills", c.get("leaks"), c.get("ADD"), c.get("DEL")),
		"0 of 500 + 500", c.get("leaks") == 0)
}

func (s *subject) killPlugin(n int, c *count) {
	s.t.Helper()
	verb := []string{"ADD", "DEL"}[n%2]
	plugin := append(chain(), "host-local")[s.random.IntN(4)]
	f := fault{Verb: verb, At: "during", Delay: time.Duration(s.random.Int64N(int64(longestPlugin)))}
	if s.random.IntN(2) == 0 {
		f.Kill = "group" // with all its child processes
	}
	id := fmt.Sprintf("m2-%d", n)
	what := fmt.Sprintf("%s: %s of %s killed after %v, kill %q", id, verb, plugin, f.Delay, f.Kill)
	path := s.container(id)
	ctx := context.Background()
	if verb == "DEL" {
		expect.Value(s.runtime.Setup(ctx, id, path, ports(int32(10000+n))...))(s.t)
		s.spoil(plugin, f)
	} else {
		s.spoil(plugin, f)
		_, err := s.runtime.Setup(ctx, id, path, ports(int32(10000+n))...)
		if err != nil { // already undone
			s.wantNothing(what+", after Setup", nil, s.left(s.before, id))
		}
	}
	c.add(verb, 1)
	s.remove(what, id)
}

// partialFailures is M5: one of two networks fails in Setup.
func (b *board) partialFailures(t *testing.T) {
	var c count
	onHosts(t, *partials, 10, func(t *testing.T, first, end int) {
		s := b.subject(t, 2<<32+uint64(first), 2)
		for n := first; n < end; n++ {
			s.failPartly(n)
			c.add("failures", 1)
		}
		c.add("attached", s.leaks)
	})
	b.figure(t, "M5", "one of two networks fails in Setup",
		fmt.Sprintf("%d left attached in %d", c.get("attached"), c.get("failures")), "0 of 500", c.get("attached") == 0)
}

func (s *subject) failPartly(n int) {
	s.t.Helper()
	plugin := chain()[s.random.IntN(3)]
	text := `{"cniVersion": "1.0.0", "code": 100, "msg": "as the test wants it"}`
	f := fault{Verb: "ADD", At: []string{"before", "after"}[s.random.IntN(2)], Exit: 1, Stdout: &text,
		Network: fmt.Sprintf("net%d", s.random.IntN(2))}
	id := fmt.Sprintf("m5-%d", n)
	what := fmt.Sprintf("%s: %s of %s fails %s the real one", id, plugin, f.Network, f.At)
	path := s.container(id)
	s.spoil(plugin, f)
	_, err := s.runtime.Setup(context.Background(), id, path, ports(int32(10000+n))...)
	expect.Fails(s.t, what+": Setup succeeded", err)
	s.wantNothing(what, nil, s.left(s.before, id))
	s.heal()
	expect.NoError(s.t, netns.Remove(path))
}

// faultyPlugin is the plugin that a fault describes.
const faultyPlugin = "testdata/faulty.sh"

// fault describes a fault plugin's actions, besides running the real one.
type fault struct {
	Real string // path of the real plugin
	Verb string // other verbs run the real plugin

	Network string // other networks run the real plugin; empty: all

	Kill   string        // "self", "parent" or "group": with SIGKILL
	At     string        // "before", "during" or "after" the real one
	Delay  time.Duration // run time of the real one, for "during"
	Hang   bool          // for good, at At
	Fork   bool          // a child that holds stdout and stderr, and hangs
	Exit   int           // at At, with Stdout as output
	Stdout *string       // replaces the real one's output
	Flood  int           // bytes of stdout
	Signal int           // sent to the real one at "during", instead of SIGKILL
	CopyTo string        // Copy is copied below it before and after the real one
	Copy   []string
}

// save writes the fault for the faulty plugin at a path.
func (f fault) save(plugin string) error {
	if f.Hang {
		f.Signal = int(syscall.SIGSTOP)
	}
	stdout := ""
	if f.Stdout != nil {
		stdout = *f.Stdout
	}
	var settings strings.Builder
	for name, value := range map[string]any{
		"real": f.Real, "verb": f.Verb, "network": f.Network, "kill": f.Kill, "at": f.At, "delay": f.Delay.Seconds(), "hang": f.Hang, "fork": f.Fork,
		"exit": f.Exit, "ends": f.Exit != 0 || f.Stdout != nil, "stdout": stdout, "flood": f.Flood, "signal": cmp.Or(f.Signal, int(syscall.SIGKILL)),
		"copies": f.CopyTo, "copied": strings.Join(f.Copy, " "),
	} {
		fmt.Fprintf(&settings, "%s='%v'\n", name, value)
	}
	return os.WriteFile(plugin+".fault", []byte(settings.String()), 0o600)
}
