package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/embedcni/cni/internal/audit"
)

// bench is one run of the benchmark.
type bench struct {
	dir, runDir, plugins string
	peerMax              int       // most containers that a contender with executables has attached
	end                  time.Time // planned end
	random               *rand.Rand
	progress             io.Writer
	results              *results
	workers              int // number of workers started, used in their directories' names
}

// run does all scenarios of a plan.
func (b *bench) run(ctx context.Context, all []scenario) error {
	weight := 0
	for _, s := range all {
		weight += s.Weight
	}
	for i, s := range all {
		start := time.Now()
		until := start.Add(time.Until(b.end) * time.Duration(s.Weight) / time.Duration(weight))
		weight -= s.Weight
		if err := b.scenario(ctx, s, until); err != nil {
			return fmt.Errorf("scenario %s: %w", s.Name, err)
		}
		if i < len(all)-1 { // nothing is measured after the last one
			if err := settle(ctx, b.runDir); err != nil {
				return err
			}
		}
		b.say("%s: %.0f s", s.Name, time.Since(start).Seconds())
	}
	return nil
}

func (b *bench) say(format string, args ...any) {
	// A failed write of progress does not stop the run.
	_, _ = fmt.Fprintf(b.progress, "bench: "+format+"\n", args...)
}

// part is a contender in one scenario.
type part struct {
	*handle
	before audit.Lines
	level  int                // containers attached in this step
	only   map[string]*series // series of this step, by verb
}

func (b *bench) scenario(ctx context.Context, s scenario, until time.Time) (err error) {
	parts, err := b.start(s, false)
	defer func(all []*part) {
		for _, p := range all {
			err = errors.Join(err, p.stop())
		}
	}(slices.Clone(parts)) // includes those that drop out of the race
	if err != nil {
		return err
	}
	// A random order: no contender is always first.
	b.random.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
	levels := s.Levels
	if levels == nil {
		levels = []int{0}
	}
	for i, level := range levels {
		share := time.Until(until) / time.Duration(len(levels)-i)
		if parts, err = b.step(ctx, s, level, parts, time.Now().Add(share)); err != nil {
			return err
		}
	}
	if s.Levels != nil {
		return nil // thousands are still attached, and go with their hosts
	}
	for _, p := range parts {
		if err := b.compare(s, p); err != nil {
			return err
		}
	}
	return b.countProcesses(s)
}

// start starts the workers. It also does the work that only the first
// attachment causes.
func (b *bench) start(s scenario, trace bool) (parts []*part, err error) {
	for _, c := range s.Contenders {
		b.workers++
		name := fmt.Sprint(b.workers)
		h, err := startWorker(spec{Contender: c, Work: s.Work, Dir: filepath.Join(b.dir, name),
			RunDir: filepath.Join(b.runDir, name), Plugins: b.plugins}, trace)
		if err == nil {
			p := &part{handle: h}
			if err = b.warmUp(p, s); err == nil {
				parts = append(parts, p)
				continue
			}
			err = errors.Join(err, h.stop())
		}
		if why := (*contenderError)(nil); !errors.As(err, &why) {
			return parts, err
		}
		b.absent(s, c, 0, err.Error())
	}
	return parts, nil
}

func (b *bench) warmUp(p *part, s scenario) error {
	verbs := []string{verbADD, verbDEL}
	if s.Kind == kindChecked {
		verbs = s.verbs(p.spec.Contender)
	}
	if _, err := p.cycle(verbs, 1, 1); err != nil {
		return err
	}
	if s.AtOnce > 1 { // alone first: not every contender survives two concurrent first ones
		n := min(s.AtOnce, 8)
		if _, err := p.cycle(verbs, n, n); err != nil {
			return err
		}
	}
	if p.tracer != nil {
		return nil
	}
	r, err := p.do(order{Verb: "snapshot"})
	p.before = r.Lines
	return err
}

func (b *bench) absent(s scenario, c contender, attached int, why string) {
	// Local paths mean nothing to a reader of the tables.
	why = strings.NewReplacer(b.dir, "DIR", b.plugins, "PLUGINS").Replace(why)
	a := absent{Scenario: s.Name, Contender: c, Attached: attached, Why: why}
	for _, known := range b.results.Absent { // absent already in the run under the tracer
		if known.Scenario == a.Scenario && known.Contender == c && known.Attached == attached {
			return
		}
	}
	b.say("%s: %s is missing: %s", s.Name, c, a.Why)
	b.results.Absent = append(b.results.Absent, a)
}

// step measures with level containers attached, and returns the contenders that
// are still in the race. One that drops out keeps its containers until the
// scenario ends.
func (b *bench) step(ctx context.Context, s scenario, level int, parts []*part, until time.Time) ([]*part, error) {
	var ready, waiting []*part
	for _, p := range parts {
		if level > b.peerMax && p.spec.Contender.executes() {
			b.absent(s, p.spec.Contender, level, fmt.Sprintf("it starts programs, and takes too long beyond %d containers", b.peerMax))
			waiting = append(waiting, p)
			continue
		}
		p.begin(s, level)
		// Half of the step is for measuring. A slow contender must not use up
		// the others' share.
		left := len(parts) - len(ready) - len(waiting)
		until := time.Now().Add(time.Until(until) / 2 / time.Duration(max(left, 1)))
		if still, err := b.inRace(s, p, p.populate(level, until)); err != nil {
			return nil, err
		} else if still {
			ready = append(ready, p)
		}
	}
	if level >= loud {
		start := time.Now()
		if calm, err := quiet(ctx, quietUntil(start, until)); err != nil {
			return nil, err
		} else if !calm {
			b.say("%s: with %d attached the machine is not idle after %.0f s", s.Name, level, time.Since(start).Seconds())
		}
	}
	for round := 0; round < s.Rounds && (round < enough || time.Now().Before(until)); round++ {
		var still []*part
		for i := range ready {
			if err := context.Cause(ctx); err != nil {
				return nil, err
			}
			p := ready[(i+round)%len(ready)]
			if ok, err := b.inRace(s, p, p.round(s)); err != nil {
				return nil, err
			} else if ok {
				still = append(still, p)
			}
		}
		if len(still) < len(ready) {
			ready = still
		}
	}
	for _, p := range ready {
		b.keep(s, p)
	}
	return append(ready, waiting...), nil
}

// keep adds what a contender's step has measured to the results.
func (b *bench) keep(s scenario, p *part) {
	for _, verb := range s.verbs(p.spec.Contender) {
		b.results.Series = append(b.results.Series, p.only[verb].done())
	}
}

// inRace reports whether a contender can continue after err. A contender that
// fails drops out and does not disturb the others.
func (b *bench) inRace(s scenario, p *part, err error) (bool, error) {
	if why := (*contenderError)(nil); errors.As(err, &why) {
		b.absent(s, p.spec.Contender, p.level, why.Error())
		return false, nil
	}
	return err == nil, err
}

// begin starts the series of a step.
func (p *part) begin(s scenario, level int) {
	p.only, p.level = map[string]*series{}, level
	for _, verb := range s.verbs(p.spec.Contender) {
		p.only[verb] = &series{Scenario: s.Name, Contender: p.spec.Contender, Verb: verb, Attached: level, AtOnce: s.AtOnce}
	}
}

// populate attaches permanent containers until there are level of them. A
// contender that is not ready in time drops out of the race.
func (p *part) populate(level int, until time.Time) error {
	atOnce := 8
	if p.spec.Contender.Kind == kindNetavark {
		atOnce = 1 // two concurrent ones create the same chain, and one fails
	}
	for p.stay < level {
		if level > few && time.Now().After(until) {
			return &contenderError{fmt.Sprintf("time was up with %d containers attached", p.stay)}
		}
		o := order{Verb: "add", First: p.stay, Count: min(level-p.stay, 50), AtOnce: atOnce, Network: eachItsOwn}
		if _, err := p.do(o); err != nil {
			return err
		}
		p.stay += o.Count
	}
	return nil
}

// round makes one contender do each operation once.
func (p *part) round(s scenario) error {
	replies, err := p.cycle(s.verbs(p.spec.Contender), s.PerRound, s.AtOnce)
	if err != nil {
		return err
	}
	for verb, r := range replies {
		p.only[verb].append(r)
	}
	return nil
}

func (s *series) append(r reply) {
	s.Micros = append(s.Micros, r.Took...)
	s.Wall = append(s.Wall, r.Wall)
	s.Rounds++
	s.Allocs += float64(r.Allocs)
	s.Bytes += float64(r.Bytes)
	s.CPU += float64(r.CPU)
	s.Resident = max(s.Resident, r.Resident)
}

// done turns sums into means.
func (s *series) done() series {
	s.Allocs /= float64(len(s.Micros))
	s.Bytes /= float64(len(s.Micros))
	s.CPU /= float64(len(s.Micros))
	return *s
}

// compare lists the leftovers that did not exist after the first container's
// DEL.
func (b *bench) compare(s scenario, p *part) error {
	r, err := p.do(order{Verb: "snapshot"})
	if err != nil {
		return err
	}
	added, removed := audit.Diff(p.before, r.Lines)
	if len(added)+len(removed) > 0 {
		b.say("%s: %s left %q, took %q", s.Name, p.spec.Contender, added, removed)
		b.results.Left = append(b.results.Left, left{Scenario: s.Name, Contender: p.spec.Contender, Added: added, Removed: removed})
	}
	return nil
}

// countProcesses makes each contender attach and detach under the tracer.
func (b *bench) countProcesses(s scenario) (err error) {
	if !s.Count {
		return nil
	}
	const times = 2
	parts, err := b.start(s, true)
	defer func() {
		for _, p := range parts {
			err = errors.Join(err, p.stop())
		}
	}()
	if err != nil {
		return err
	}
	for _, p := range parts {
		for _, verb := range s.verbs(p.spec.Contender) {
			before := p.tracer.processes.Load()
			o := order{Verb: strings.ToLower(verb), First: p.next, Count: times, AtOnce: 1}
			if _, err := p.do(o); err != nil {
				return fmt.Errorf("%s: %w", p.spec.Contender, err)
			}
			b.results.Counts = append(b.results.Counts, count{Scenario: s.Name, Contender: p.spec.Contender,
				Verb: verb, Processes: float64(p.tracer.processes.Load()-before) / times})
		}
	}
	return nil
}
