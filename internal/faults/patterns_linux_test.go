package faults_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
)

// patternCases are M21: the ways in which importers use go-cni and that go-cni
// allows.
func patternCases() []livingCase {
	onDisk := []string{executables}
	return []livingCase{
		{"F29", "a namespace of the leading thread", nil, (*living).leading},
		{"F30", "Remove behind an orphan, no Recover", onDisk, (*living).behindTheDead},
		{"F31", "a first ADD hangs", nil, (*living).behindTheHanging},
		{"F32", "two lists of one name, one goes", nil, (*living).twoLists},
		{"F33", "a caller that never removes", nil, (*living).neverRemoved},
		{"F34", "from go-cni and back again", []string{executables, ourIPTables, builtIn}, (*living).thereAndBack},
	}
}

// patterns tries each of them with random kinds of plugins.
func (b *board) patterns(t *testing.T) {
	cases := patternCases()
	counts := make([]count, len(cases))
	besideEachOther(t, cases, *patternRounds, func(t *testing.T, i, round int) {
		kind := func(random *rand.Rand) string { return cases[i].kind(random.IntN(4 * 3)) }
		l := b.newLiving(t, 21<<32+uint64(i)<<16+uint64(round), kind)
		l.round(cases[i].run, &counts[i])
	})
	for i, c := range cases {
		n := &counts[i]
		if n.get("rounds") == 0 {
			continue // with -run there may be only a few
		}
		figure := fmt.Sprintf("%d of %d failed", n.get("failed"), n.get("rounds"))
		target := "0"
		for _, what := range slices.Sorted(maps.Keys(n.longest)) {
			figure += fmt.Sprintf(", %s %.1f s", what, n.longest[what].Seconds())
			target += fmt.Sprintf(", %s %v", what, bounds()[what])
		}
		b.figure(t, "M21", c.fault+" "+c.name, figure, target, n.get("failed") == 0)
	}
}

// bounds returns the limits of measured durations. They leave room for noise on
// a busy machine.
func bounds() map[string]time.Duration {
	return map[string]time.Duration{"Remove": 4 * time.Second, "neighbour": 2 * time.Second, "other": 0}
}

// noise is what other work on the machine may add. What hangs does so without end.
func noise() time.Duration {
	if *costRounds < strictRounds { // an everyday run, beside other tests
		return expect.Patience / 2
	}
	return 3 * time.Second
}

// measured records a duration, and notes a failure if it is out of bounds.
func (l *living) measured(what string, took time.Duration) {
	l.t.Helper()
	took = max(took, 0)
	l.took[what] = max(took, l.took[what])
	if bound := bounds()[what]; took > bound+noise() {
		l.say("%s took %v, want %v at most", what, took, bound)
	}
}

// wantNothing checks that the host has no leftovers.
func (l *living) wantNothing(after string) {
	l.t.Helper()
	if left := leftOf(l.base, l.audit()); len(left) > 0 {
		l.say("left after %s:\n%s", after, strings.Join(left, "\n"))
	}
}

// some returns one of the words.
func (l *living) some(words ...string) string { return words[l.random.IntN(len(words))] }

// sometimes is true half of the time.
func (l *living) sometimes() bool { return l.random.IntN(2) == 0 }
