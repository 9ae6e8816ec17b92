package faults_test

import (
	"context"
	"errors"
	"fmt"
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

// kind is a way in which a plugin fails.
type kind struct {
	name   string
	f      fault
	quiet  string // verbs at which it is not a failure: their output is not read
	parent bool   // the runtime dies, so it runs in another process
}

func text(s string) *string { return &s }

// kinds returns the 20 plugin faults.
func kinds() []kind {
	const other = "DEL CHECK" // nobody reads their output
	const failed = `{"cniVersion": "1.0.0", "code": 100, "msg": "as the test wants it", "details": "not found"}`
	const again = `{"cniVersion": "1.0.0", "code": 11, "msg": "later"}`
	mid := 15 * time.Millisecond
	return []kind{
		{name: "killed before", f: fault{Kill: "self", At: "before"}},
		{name: "killed in the middle", f: fault{Kill: "self", At: "during", Delay: mid}},
		{name: "killed with its children", f: fault{Kill: "group", At: "during", Delay: mid}},
		{name: "killed after", f: fault{Kill: "self", At: "after"}},
		{name: "terminated in the middle", f: fault{Signal: int(syscall.SIGTERM), At: "during", Delay: mid}},
		{name: "runtime killed before", f: fault{Kill: "parent", At: "before"}, parent: true},
		{name: "runtime killed in the middle", f: fault{Kill: "parent", At: "during", Delay: mid}, parent: true},
		{name: "runtime killed after", f: fault{Kill: "parent", At: "after"}, parent: true},
		{name: "fails before", f: fault{Exit: 1, Stdout: text(failed), At: "before"}},
		{name: "fails after", f: fault{Exit: 1, Stdout: text(failed), At: "after"}},
		{name: "fails without a word before", f: fault{Exit: 2, At: "before"}},
		{name: "fails without a word after", f: fault{Exit: 2, At: "after"}},
		{name: "try again", f: fault{Exit: 1, Stdout: text(again), At: "after"}},
		{name: "hangs before", f: fault{Hang: true, At: "before"}},
		{name: "hangs in the middle", f: fault{Hang: true, At: "during", Delay: mid}},
		{name: "hangs after, with a child", f: fault{Hang: true, Fork: true, At: "after"}},
		{name: "no JSON", f: fault{Stdout: text("<html>"), At: "after"}, quiet: other},
		{name: "a null among interfaces", quiet: other,
			f: fault{Stdout: text(`{"cniVersion": "1.0.0", "interfaces": [null], "ips": [{"address": "10.0.0.1/8", "interface": 7}]}`), At: "after"}},
		{name: "a version of the future", f: fault{Stdout: text(`{"cniVersion": "99.0.0"}`), At: "after"}, quiet: other},
		{name: "too much output", f: fault{Flood: 64 << 20, Exit: 1, At: "after"}},
	}
}

// matrix is M3: each fault at each verb, first and last in a chain.
func (b *board) matrix(t *testing.T) {
	var c count
	t.Run("faults", func(t *testing.T) {
		for i, k := range kinds() {
			t.Run(k.name, func(t *testing.T) {
				t.Parallel()
				s := b.subject(t, 3<<32+uint64(i), 1)
				for j, verb := range []string{"ADD", "DEL", "CHECK"} {
					for l, plugin := range []string{"bridge", "portmap"} {
						c.add("cases", 1)
						if s.fault(k, verb, plugin, fmt.Sprintf("m3-%d-%d-%d", i, j, l)) {
							c.add("clean", 1)
						}
					}
				}
			})
		}
	})
	b.figure(t, "M3", "plugin faults x verb x place", fmt.Sprintf("%d of %d clean", c.get("clean"), c.get("cases")),
		"120 of 120", c.get("clean") == 120 && c.get("cases") == 120)
}

func (s *subject) fault(k kind, verb, plugin, id string) (clean bool) {
	s.t.Helper()
	leaks, what := s.leaks, fmt.Sprintf("%s: %s in %s of %s", id, k.name, verb, plugin)
	path := s.container(id)
	k.f.Verb = verb
	if verb == "CHECK" {
		k.f.Delay = 0 // it takes almost no time
	}
	if verb != "ADD" {
		expect.Value(s.runtime.Setup(context.Background(), id, path, ports(10000)...))(s.t)
	}
	s.spoil(plugin, k.f)
	if k.parent {
		s.faultElsewhere(what, verb, id, path)
	} else {
		r := s.runtime
		if k.f.Hang {
			r = s.brief
		}
		s.faultHere(r, what, verb, id, strings.Contains(k.quiet, verb))
	}
	return s.leaks == leaks
}

func (s *subject) faultHere(r *cni.Runtime, what, verb, id string, quiet bool) {
	s.t.Helper()
	ctx, path := context.Background(), s.netns(id)
	switch verb {
	case "ADD":
		if _, err := r.Setup(ctx, id, path, ports(10000)...); err == nil {
			s.wantNothing(what, fmt.Errorf("Setup succeeded"), nil)
		}
		s.wantNothing(what, nil, s.left(s.before, id))
	case "CHECK":
		attached := s.audit()
		if err := r.Check(ctx, id, path); (err == nil) != quiet {
			s.wantNothing(what, fmt.Errorf("Check: %v", err), nil)
		}
		if now := s.audit(); fmt.Sprint(now) != fmt.Sprint(attached) {
			s.wantNothing(what+": changed the container", nil, now)
		}
	}
	s.removeBy(r, what, id)
}

// faultElsewhere runs the fault in another runtime, which dies, and recovers
// with a third one. A container that was being checked stays attached.
func (s *subject) faultElsewhere(what, verb, id, path string) {
	s.t.Helper()
	set := s.settings(1)
	killed, said := begin(s.t, job{Verb: verb, ID: id, NetNS: path, Port: 10000, Settings: set}).wait()
	expect.That(s.t, killed, "%s: the runtime lives, and says %s", what, said)
	s.heal()
	err := elsewhere(s.t, job{Verb: "RECOVER", Adopt: verb == "CHECK", Settings: set})
	if verb == "CHECK" {
		s.wantNothing(what, err, nil)
		s.remove(what, id)
		return
	}
	s.wantNothing(what, err, s.left(s.before, id))
	expect.NoError(s.t, netns.Remove(path))
}

// twist is a change to a container's namespace.
type twist struct {
	name string
	// do makes the change for the container whose namespace was at path. It
	// returns the path for the verb.
	do func(s *subject, path string) string
}

func twists() []twist {
	return []twist{
		{"gone", func(s *subject, path string) string {
			expect.NoError(s.t, netns.Remove(path))
			return path
		}},
		{"a file", func(s *subject, path string) string {
			expect.NoError(s.t, netns.Remove(path))
			expect.NoError(s.t, os.WriteFile(path, []byte("no namespace"), 0o600))
			return path
		}},
		{"a directory", func(s *subject, path string) string {
			expect.NoError(s.t, netns.Remove(path))
			expect.NoError(s.t, os.Mkdir(path, 0o700))
			return path
		}},
		{"the host's", func(s *subject, path string) string { return s.netns("host") }},
		{"the process's", func(s *subject, path string) string { return "/proc/self/ns/net" }},
		{"another container's", func(s *subject, path string) string {
			expect.NoError(s.t, netns.Remove(path))
			ns := expect.Value(netns.Open(s.netns("neighbour")))(s.t)
			expect.NoError(s.t, errors.Join(netns.Pin(ns, path), ns.Close()))
			return path
		}},
	}
}

// namespaces is M6: the verbs with a changed namespace. Neither the host nor
// another container may change.
func (b *board) namespaces(t *testing.T) {
	s := b.subject(t, 6<<32, 1)
	alone := s.before
	neighbour := s.container("neighbour")
	expect.Value(s.runtime.Setup(context.Background(), "neighbour", neighbour, ports(9999)...))(t)
	s.before = s.audit()
	inside := fmt.Sprint(s.inside("neighbour"))
	cases, changes := 0, 0
	for i, tw := range twists() {
		for j, verb := range []string{"ADD", "DEL", "CHECK"} {
			cases++
			s.twisted(tw, verb, fmt.Sprintf("m6-%d-%d", i, j))
			if now := fmt.Sprint(s.inside("neighbour")); now != inside {
				changes++
				t.Errorf("%s of a container whose namespace is %s: the neighbour had %s and has %s", verb, tw.name, inside, now)
				inside = now
			}
		}
	}
	s.before = alone
	s.remove("the neighbour", "neighbour")
	b.figure(t, "M6", "namespace gone, fake, the host's, recycled",
		fmt.Sprintf("%d leaks, %d changes in %d cases", s.leaks, changes, cases), "0 and 0", s.leaks+changes == 0)
}

func (s *subject) twisted(tw twist, verb, id string) {
	s.t.Helper()
	ctx, what := context.Background(), fmt.Sprintf("%s: %s, namespace is %s", id, verb, tw.name)
	path := s.container(id)
	if verb != "ADD" {
		expect.Value(s.runtime.Setup(ctx, id, path, ports(10000)...))(s.t)
	}
	now := tw.do(s, path)
	var err error
	switch verb {
	case "ADD":
		_, err = s.runtime.Setup(ctx, id, now, ports(10000)...)
	case "CHECK":
		err = s.runtime.Check(ctx, id, now)
	case "DEL":
		if err := s.runtime.Remove(ctx, id, now); err == nil {
			s.board.removed(len(s.leftOutside()))
		}
	}
	if verb != "DEL" && err == nil {
		s.wantNothing(what, errors.New("it succeeded"), nil)
	}
	// Without a path the record must suffice. A refused Remove ends here too.
	s.wantNothing(what, s.runtime.Remove(ctx, id, ""), s.leftOutside())
	if err := netns.Remove(path); errors.Is(err, netns.ErrNotNetNS) {
		expect.NoError(s.t, os.Remove(path))
	}
}

// leftOutside is left without the contents of the container's path.
func (s *subject) leftOutside() audit.Lines {
	s.t.Helper()
	return leftOf(s.before, s.audit())
}
