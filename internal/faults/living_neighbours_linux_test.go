package faults_test

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netns"
)

// ownerCases: several programs share a host.
func ownerCases() []livingCase {
	return []livingCase{
		{"F41", "three owners killed in turn", []string{builtIn}, (*living).killedInTurn},
	}
}

// killedInTurn: three programs attach and remove containers, are killed, and
// restart with Recover and GC, possibly with another kind of plugins.
func (l *living) killedInTurn() {
	var owners []settings
	for n := range 3 {
		s := l.set
		s.Owner = fmt.Sprintf("owner%d", n)
		owners = append(owners, s)
		l.attachBy(s, fmt.Sprintf("c%d", n))
	}
	for n := range 6 {
		for i := range owners {
			owners[i].BuiltIn = l.random.IntN(2) == 0
		}
		s := owners[l.random.IntN(len(owners))]
		live := "c" + strings.TrimPrefix(s.Owner, "owner")
		j := job{Verb: "ADD", ID: fmt.Sprintf("dead%d", n), Port: int32(20000 + n), Settings: s}
		j.NetNS = l.container(j.ID)
		if l.random.IntN(2) == 0 {
			expect.NoError(l.t, elsewhere(l.t, j))
			j.Verb = "DEL"
		}
		delay := time.Duration(l.random.Int64N(int64(200 * time.Millisecond)))
		p := begin(l.t, j)
		<-time.After(delay)
		hit := p.kill()
		l.t.Logf("%s of %s by %s killed after %v: %v", j.Verb, j.ID, s.Owner, delay, hit)
		for _, next := range slices.Concat([]settings{s}, owners) {
			l.restart(next)
		}
		l.collect(s, live)
		expect.NoError(l.t, netns.Remove(j.NetNS))
	}
}
