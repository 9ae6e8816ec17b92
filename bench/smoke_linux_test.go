package main

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/refplugins"
)

func TestMain(m *testing.M) {
	if text, ok := os.LookupEnv(workerVariable); ok {
		if err := runWorker(text, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "worker:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(refplugins.Main(m))
}

// logger writes progress to the test's log.
type logger struct{ t *testing.T }

func (l logger) Write(p []byte) (int, error) {
	l.t.Log(string(p))
	return len(p), nil
}

// TestEveryContenderDoesEveryScenario runs the whole plan with few rounds.
// Every measured operation must work, leave nothing behind, and be complete.
func TestEveryContenderDoesEveryScenario(t *testing.T) {
	o := options{dir: t.TempDir(), seed: 1, peerMax: 3, budget: 10 * time.Minute, effort: smokeEffort()}
	r, err := measureAll(t.Context(), o, logger{t})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.complete(); err != nil {
		t.Error(err)
	}
	for _, s := range plan(o.effort) {
		levels := s.Levels
		if levels == nil {
			levels = []int{0}
		}
		for _, c := range s.Contenders {
			missing := slices.ContainsFunc(r.Absent, func(a absent) bool { return a.Scenario == s.Name && a.Contender == c })
			for _, level := range levels {
				for _, verb := range s.verbs(c) {
					got := r.find(s.Name, c, verb, level)
					if got != nil && (got.CPU <= 0 || got.Resident < 1<<20) {
						t.Errorf("%s: %s of %s takes %g µs of processors and %d bytes", s.Name, verb, c, got.CPU, got.Resident)
					}
					if missing != (got == nil) {
						t.Errorf("%s: %s of %s with %d attached: found %v, said to be missing: %v", s.Name, verb, c, level, got, missing)
					}
				}
			}
		}
	}
	for _, c := range r.Counts {
		if c.Contender.Kind == kindInProcess && (c.Contender.Backend == iptables || c.Scenario == "default") {
			continue // one or two, or none if rules can be deleted without a process
		}
		if c.Contender.Kind == kindOneLine && c.Scenario == "loopback" {
			continue // none if loopback is built in
		}
		if c.Contender.executes() != (c.Processes > 0) {
			t.Errorf("%s: %s of %s starts %g processes", c.Scenario, c.Verb, c.Contender, c.Processes)
		}
	}
}
