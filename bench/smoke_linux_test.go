package main

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/refplugins"
)

func TestMain(m *testing.M) {
	if text, ok := os.LookupEnv(workerVariable); ok {
		do := func() error { return runWorker(text, os.Stdin, os.Stdout) }
		if os.Getenv(pairVariable) != "" {
			do = func() error { return pairMain(text) }
		}
		if err := do(); err != nil {
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
	o := options{dir: t.TempDir(), seed: 1, budget: 10 * time.Minute, effort: smokeEffort}
	r := expect.Value(measureAll(t.Context(), o, logger{t}))(t)
	if err := r.complete(); err != nil {
		t.Error(err)
	}
	for _, s := range plan(o.effort) {
		for _, c := range s.Contenders {
			missing := slices.ContainsFunc(r.Absent, func(a absent) bool { return a.Scenario == s.Name && a.Contender == c })
			for _, level := range s.Attached {
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
	for _, one := range r.Series {
		c := one.Contender
		if c.Kind == kindInProcess && one.Scenario != "nat" {
			continue // one or two, or none if rules can be changed without a process
		}
		if (c.Kind == kindOneLine || c.Kind == kindDisk) && one.Scenario == "loopback" {
			continue // the library's own network runs in process
		}
		if c.executes() != (one.Programs == "some") {
			t.Errorf("%s: %s of %s starts programs: %s", one.Scenario, one.Verb, c, one.Programs)
		}
	}
}
