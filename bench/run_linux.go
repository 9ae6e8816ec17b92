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
)

// bench is one run of the benchmark.
type bench struct {
	dir, runDir, plugins string
	peerMax              int       // most containers of a contender that starts programs
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
	level int                // containers attached in this step
	only  map[string]*series // series of this step, by verb
}

func (b *bench) scenario(ctx context.Context, s scenario, until time.Time) (err error) {
	parts, err := b.start(s)
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
	for i, level := range s.Attached {
		share := time.Until(until) / time.Duration(len(s.Attached)-i)
		if parts, err = b.step(ctx, s, level, parts, time.Now().Add(share)); err != nil {
			return err
		}
	}
	return nil
}

// start starts the workers. It also does the work that only the first
// attachment causes.
func (b *bench) start(s scenario) (parts []*part, err error) {
	for _, c := range s.Contenders {
		b.workers++
		name := fmt.Sprint(b.workers)
		h, err := startWorker(spec{Contender: c, Work: s.Work, Ports: s.Ports, StayPorts: s.StayPorts, Dir: filepath.Join(b.dir, name),
			RunDir: filepath.Join(b.runDir, name), Plugins: b.plugins})
		if err == nil {
			p := &part{handle: h}
			if err = p.warmUp(s); err == nil {
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

func (p *part) warmUp(s scenario) error {
	// Alone first: not every contender survives two concurrent first ones.
	for _, n := range slices.Compact([]int{1, min(s.AtOnce, 8)}) {
		if _, err := p.cycle(s.verbs(p.spec.Contender), n, n); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) absent(s scenario, c contender, attached int, why string) {
	// Local paths mean nothing to a reader of the tables.
	why = strings.NewReplacer(b.dir, "DIR", b.plugins, "PLUGINS").Replace(why)
	b.say("%s: %s is missing: %s", s.Name, c, why)
	b.results.Absent = append(b.results.Absent, absent{Scenario: s.Name, Contender: c, Attached: attached, Why: why})
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
		// Others may keep the machine busy for ever, and later steps need time too.
		if calm, err := quiet(ctx, start.Add(min(max(until.Sub(start)/2, 20*time.Second), quietAtAll))); err != nil {
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

// keep adds what a contender's step has measured to the results, sums as means.
func (b *bench) keep(s scenario, p *part) {
	for _, verb := range s.verbs(p.spec.Contender) {
		one := *p.only[verb]
		operations := float64(len(one.Wall) * one.AtOnce)
		one.Allocs /= operations
		one.CPU /= operations
		b.results.Series = append(b.results.Series, one)
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
		p.only[verb] = &series{Scenario: s.Name, Contender: p.spec.Contender, Verb: verb, Attached: level, AtOnce: s.AtOnce, Programs: "none"}
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
		o := order{Verb: verbADD, First: p.stay, Count: min(level-p.stay, 50), AtOnce: atOnce, Network: eachItsOwn}
		if _, err := p.do(o); err != nil {
			return err
		}
		p.stay += o.Count
	}
	return nil
}

// round makes one contender do each operation once.
func (p *part) round(s scenario) error {
	replies, err := p.cycle(s.verbs(p.spec.Contender), s.AtOnce, s.AtOnce)
	if err != nil {
		return err
	}
	for verb, r := range replies {
		one := p.only[verb]
		one.Wall = append(one.Wall, r.Wall)
		one.Allocs += float64(r.Allocs)
		one.CPU += float64(r.CPU)
		one.Resident = max(one.Resident, r.Memory)
		if r.Faults > 0 {
			one.Programs = "some"
		}
	}
	return nil
}
