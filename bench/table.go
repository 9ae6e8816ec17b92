package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// files returns the texts of the generated files by name.
func (r *results) files() map[string]string {
	return map[string]string{"results.md": r.markdown(), "cost.svg": r.costPlot()}
}

// markdown returns results.md.
func (r *results) markdown() string {
	var b strings.Builder
	b.WriteString("# What it costs to attach a container\n\nMade by `make bench`; `results.json` has every duration.\n\n")
	r.about(&b)
	r.scenarioSections(&b, func(s scenario) bool { return s.Work == workDefault })
	r.crowdSection(&b, workDefault)
	r.defaultAttachedSection(&b)
	b.WriteString("\n## What was to be reached\n\n")
	r.targetTable(&b)
	b.WriteString("\nRatios are of medians of one run. The record of attachments is on, on the file system named above.\n")
	r.scenarioSections(&b, func(s scenario) bool { return s.Work != workDefault })
	r.crowdSection(&b, workNAT)
	r.attachedSection(&b)
	r.manySection(&b)
	r.notes(&b)
	return b.String()
}

func (r *results) about(b *strings.Builder) {
	m := r.Machine
	fmt.Fprintf(b, "%s, %d cores, %s of memory, Linux %s, state on %s, %s, %s.", m.CPU, m.Cores, m.Memory, m.Kernel, m.FileSystem, m.Go, r.Date)
	for _, name := range slices.Sorted(maps.Keys(r.Versions)) {
		fmt.Fprintf(b, " %s %s.", capital(name), r.Versions[name])
	}
	fmt.Fprintf(b, "\n\nContenders take turns, whoever began a round ends the next; the first order was drawn with the seed %d. "+
		"What was first after the start is not counted. A machine that does other things as well makes all of it slower: "+
		"least is closest to the work itself. The floor makes the same objects of the kernel with the bare messages.\n", r.Seed)
}

func (r *results) targetTable(b *strings.Builder) {
	b.WriteString("| | target | measured | reached |\n|---|---:|---:|:---:|\n")
	for _, t := range r.targets() {
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", t.What, t.wanted(), t.got(), t.verdict())
	}
}

func (r *results) has(scenario string) bool {
	return slices.ContainsFunc(r.Series, func(s series) bool { return s.Scenario == scenario })
}

// entered returns the contenders of a scenario in the plan's order: those that
// took part, and those that the run has missed.
func (r *results) entered(scenario string) []contender {
	var all []contender
	for _, s := range plan(fullEffort()) {
		if s.Name == scenario {
			all = s.Contenders
		}
	}
	return slices.DeleteFunc(slices.Clone(all), func(c contender) bool {
		return !r.took(scenario, c) && r.why(scenario, c) == ""
	})
}

// contenders returns those that took part in a scenario, in the plan's order.
func (r *results) contenders(scenario string) []contender {
	return slices.DeleteFunc(r.entered(scenario), func(c contender) bool { return !r.took(scenario, c) })
}

func (r *results) took(scenario string, c contender) bool {
	return slices.ContainsFunc(r.Series, func(s series) bool { return s.Scenario == scenario && s.Contender == c })
}

// why returns why a contender is missing in a scenario from the begin.
func (r *results) why(scenario string, c contender) string {
	for _, a := range r.Absent {
		if a.Scenario == scenario && a.Contender == c && a.Attached == 0 {
			return oneLineText(a.Why)
		}
	}
	return ""
}

// oneLineText fits into a cell of a table.
func oneLineText(text string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", `\|`)
}

// missing adds the row of a contender that did not take part.
func (r *results) missing(b *strings.Builder, scenario string, c contender, columns int) {
	fmt.Fprintf(b, "| %s | missing: %s |%s\n", c, r.why(scenario, c), strings.Repeat(" |", columns-1))
}

// scenarioSections adds the tables of the scenarios without other containers.
func (r *results) scenarioSections(b *strings.Builder, wanted func(scenario) bool) {
	for _, s := range plan(fullEffort()) {
		if s.Count && wanted(s) && r.has(s.Name) {
			fmt.Fprintf(b, "\n## %s\n\n", capital(s.Work.title()))
			r.scenarioTable(b, s)
		}
	}
}

// peer returns the go-cni of a scenario that others are compared with: the first
// one that took part.
func (r *results) peer(scenario string) contender {
	for _, c := range r.contenders(scenario) {
		if c.Kind == kindGoCNI {
			return c
		}
	}
	return goCNIPlain()
}

func (r *results) scenarioTable(b *strings.Builder, s scenario) {
	peer := r.peer(s.Name)
	verbs := s.verbs(peer)
	b.WriteString("| |")
	for _, verb := range verbs {
		fmt.Fprintf(b, " %s median | least | p90 | against floor | %s takes |", verb, peer)
	}
	fmt.Fprintf(b, " allocations per ADD | processes, %s | rounds |\n|---|%s\n", strings.Join(verbs, " / "), strings.Repeat("---:|", 5*len(verbs)+3))
	for _, c := range r.entered(s.Name) {
		if !r.took(s.Name, c) {
			r.missing(b, s.Name, c, 5*len(verbs)+3)
			continue
		}
		fmt.Fprintf(b, "| %s ", c)
		var processes []string
		for _, verb := range verbs {
			x := summary{}
			if found := r.find(s.Name, c, verb, 0); found != nil {
				x = summarize(found.Micros)
			}
			fmt.Fprintf(b, "| %s | %s | %s | %s | %s ", short(x.Median), short(x.Min), short(x.P90),
				times(x.Median, r.median(s.Name, theFloor(), verb, 0)), times(r.median(s.Name, peer, verb, 0), x.Median))
			processes = append(processes, r.processes(s.Name, c, verb))
		}
		one := r.find(s.Name, c, verbADD, 0)
		fmt.Fprintf(b, "| %.0f, %.0f kB | %s | %d |\n", one.Allocs, one.Bytes/1000, strings.Join(processes, " / "), one.Rounds)
	}
}

func (r *results) processes(scenario string, c contender, verb string) string {
	for _, n := range r.Counts {
		if n.Scenario == scenario && n.Contender == c && n.Verb == verb {
			return fmt.Sprintf("%g", n.Processes)
		}
	}
	return "–"
}

// crowdSection adds the rates of work by many at once.
func (r *results) crowdSection(b *strings.Builder, w work) {
	var sizes []int
	for _, n := range fullEffort().Crowds {
		if r.has(crowdName(w, n)) {
			sizes = append(sizes, n)
		}
	}
	if sizes == nil {
		return
	}
	peer := r.peer(crowdName(w, sizes[0]))
	fmt.Fprintf(b, "\n## Many at once\n\n%s. The rate is that of the median round, in brackets against that of %s and of the floor; "+
		"then the duration of one operation among the others, and its CPU time, with that of its programs.\n", capital(w.title()), peer)
	for _, verb := range []string{verbADD, verbDEL} {
		fmt.Fprintf(b, "\n| %s |", verb)
		for _, n := range sizes {
			fmt.Fprintf(b, " %d at once | each, CPU |", n)
		}
		b.WriteString("\n|---|" + strings.Repeat("---:|---:|", len(sizes)) + "\n")
		for _, c := range r.entered(crowdName(w, sizes[len(sizes)-1])) {
			fmt.Fprintf(b, "| %s |", c)
			for _, n := range sizes {
				r.crowdCells(b, crowdName(w, n), c, peer, verb)
			}
			b.WriteString("\n")
		}
	}
	if w == workNAT {
		b.WriteString("\nNetavark does not take part: its caller has to keep two of them apart.\n")
	}
}

func (r *results) crowdCells(b *strings.Builder, scenario string, c, peer contender, verb string) {
	s := r.find(scenario, c, verb, 0)
	if s == nil {
		fmt.Fprintf(b, " missing: %s | – |", r.why(scenario, c))
		return
	}
	against := func(other contender) string {
		if o := r.find(scenario, other, verb, 0); o != nil && o.rate() > 0 {
			return digits(s.rate()/o.rate()) + "×"
		}
		return "–"
	}
	fmt.Fprintf(b, " %s (%s, %s) | %s", perSecond(s.rate()), against(peer), against(theFloor()), short(summarize(s.Micros).Median))
	if s.CPU > 0 {
		fmt.Fprintf(b, ", %s", micros(s.CPU))
	}
	b.WriteString(" |")
}

// notes lists absent contenders and leftovers.
func (r *results) notes(b *strings.Builder) {
	b.WriteString("\n## Who is missing, and what was left\n\n")
	if len(r.Absent)+len(r.Left) == 0 {
		b.WriteString("Nobody, and nothing.\n")
	}
	for _, a := range r.Absent {
		fmt.Fprintf(b, "- %s: %s", a.Scenario, a.Contender)
		if a.Attached > 0 {
			fmt.Fprintf(b, " with %s attached", thousands(a.Attached))
		}
		fmt.Fprintf(b, " is missing: %s\n", strings.Join(strings.Fields(a.Why), " "))
	}
	for _, l := range r.Left {
		fmt.Fprintf(b, "- %s: when all was detached, %s had left %d things, such as `%s`, and taken %d\n", l.Scenario, l.Contender,
			len(l.Added), strings.Join(l.Added[:min(1, len(l.Added))], ""), len(l.Removed))
	}
}

// inTurns returns the microseconds of an operation, or of each of several at once.
func (r *results) inTurns(scenario string, c contender, verb string, attached int) time.Duration {
	s := r.find(scenario, c, verb, attached)
	if s == nil || len(s.Micros) == 0 {
		return 0
	}
	median, _ := medianWithError(s.each())
	return time.Duration(median * float64(time.Microsecond))
}
