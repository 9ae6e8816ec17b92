package faults_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netns"
)

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
			id := fmt.Sprintf("m6-%d-%d", i, j)
			s.twisted(tw, verb, id)
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
	err = s.runtime.Remove(ctx, id, "")
	s.wantNothing(what, err, s.leftOutside())
	if err := netns.Remove(path); errors.Is(err, netns.ErrNotNetNS) {
		expect.NoError(s.t, os.Remove(path))
	}
}

// leftOutside is left without the contents of the container's path.
func (s *subject) leftOutside() audit.Lines {
	s.t.Helper()
	return leftOf(s.before, s.audit())
}
