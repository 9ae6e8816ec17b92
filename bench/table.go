package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// markdown returns results.md.
func (r *results) markdown() string {
	var b strings.Builder
	b.WriteString("# What it costs to attach a container\n\nMade by `make bench`; `results.json` has every duration.\n\n")
	r.about(&b)
	b.WriteString("\n## What was to be reached\n\n")
	r.targetTable(&b)
	b.WriteString("\nRatios are of medians of one run. The record of attachments is on, on the file system named above.\n")
	for _, s := range plan(fullEffort()) {
		if s.Count && r.has(s.Name) {
			fmt.Fprintf(&b, "\n## %s\n\n", capital(s.Work.title()))
			r.scenarioTable(&b, s)
		}
	}
	r.crowdSection(&b)
	r.attachedSection(&b)
	r.verdictSection(&b)
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
		"least is closest to the work itself.\n", r.Seed)
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

// contenders returns those that took part in a scenario, in the plan's order.
func (r *results) contenders(scenario string) []contender {
	var all []contender
	for _, s := range plan(fullEffort()) {
		if s.Name == scenario {
			all = s.Contenders
		}
	}
	return slices.DeleteFunc(slices.Clone(all), func(c contender) bool {
		return !slices.ContainsFunc(r.Series, func(s series) bool { return s.Scenario == scenario && s.Contender == c })
	})
}

func (r *results) scenarioTable(b *strings.Builder, s scenario) {
	b.WriteString("| | ADD median | least | p90 | against floor | DEL median | least | p90 | against floor | allocations per ADD | processes, ADD / DEL | rounds |\n" +
		"|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n")
	for _, c := range r.contenders(s.Name) {
		fmt.Fprintf(b, "| %s ", c)
		for _, verb := range []string{"ADD", "DEL"} {
			x := summarize(r.find(s.Name, c, verb, 0).Micros)
			fmt.Fprintf(b, "| %s | %s | %s | %s ", short(x.Median), short(x.Min), short(x.P90), times(x.Median, r.median(s.Name, theFloor(), verb, 0)))
		}
		add := r.find(s.Name, c, "ADD", 0)
		fmt.Fprintf(b, "| %.0f, %.0f kB | %s / %s | %d |\n", add.Allocs, add.Bytes/1000, r.processes(s.Name, c, "ADD"), r.processes(s.Name, c, "DEL"), add.Rounds)
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

func (r *results) crowdSection(b *strings.Builder) {
	if !r.has("crowd64") {
		return
	}
	b.WriteString("\n## Many at once\n\n" + capital(workNAT.title()) +
		". The rate is that of the median round; the duration that of one ADD among the others.\n\n")
	scenarios := []string{"crowd1", "crowd8", "crowd64"}
	for _, verb := range []string{"ADD", "DEL"} {
		fmt.Fprintf(b, "| %s | 1 at once | each | 8 at once | each | 64 at once | each |\n|---|---:|---:|---:|---:|---:|---:|\n", verb)
		for _, c := range r.contenders(scenarios[2]) {
			fmt.Fprintf(b, "| %s ", c)
			for _, name := range scenarios {
				s := r.find(name, c, verb, 0)
				if s == nil {
					b.WriteString("| – | – ")
					continue
				}
				fmt.Fprintf(b, "| %.3g/s | %s ", s.rate(), short(summarize(s.Micros).Median))
			}
			b.WriteString("|\n")
		}
		b.WriteString("\n")
	}
	b.WriteString("Netavark does not take part: its caller has to keep two of them apart.\n")
}

func (r *results) attachedSection(b *strings.Builder) {
	if !r.has("attached") {
		return
	}
	b.WriteString("\n## Attached containers\n\nADD, then DEL, with so many attached already, 1,000 to a bridge: " +
		workNAT.title() + ".\n\n![cost of an ADD](cost.svg)\n")
	for _, verb := range []string{"ADD", "DEL"} {
		b.WriteString("\n")
		r.attachedTable(b, verb)
	}
}

func (r *results) verdictSection(b *strings.Builder) {
	const scenario = "verdict"
	if !r.has(scenario) {
		return
	}
	b.WriteString("\n## Verdicts\n\nWhether each attached container is healthy, of all together, 1,000 to a bridge: " + workNAT.title() +
		". Ours compares them with their records, without CHECK; go-cni's asks the plugins of one after the other. Recover is what a program does " +
		"when it starts.\n\n| |")
	levels := r.levels(scenario)
	for _, n := range levels {
		fmt.Fprintf(b, " %s | each |", thousands(n))
	}
	b.WriteString(" each, last against first |\n|---|" + strings.Repeat("---:|", 2*len(levels)+1) + "\n")
	for _, verb := range []string{verbVerdict, verbRecover} {
		for _, c := range r.contenders(scenario) {
			r.verdictRow(b, scenario, c, verb, levels)
		}
	}
}

// verdictRow adds a contender's times, if it has any.
func (r *results) verdictRow(b *strings.Builder, scenario string, c contender, verb string, levels []int) {
	var first, last time.Duration // of each container
	row := fmt.Sprintf("| %s: %s |", verb, c)
	for _, n := range levels {
		m := r.median(scenario, c, verb, n)
		if m == 0 {
			row += " – | – |"
			continue
		}
		last = m / time.Duration(n)
		first = cmp.Or(first, last)
		row += fmt.Sprintf(" %s | %s |", short(m), short(last))
	}
	if first > 0 {
		fmt.Fprintf(b, "%s %s |\n", row, times(last, first))
	}
}

// levels returns a scenario's measured numbers of attached containers.
func (r *results) levels(scenario string) []int {
	var all []int
	for _, s := range r.Series {
		if s.Scenario == scenario && !slices.Contains(all, s.Attached) {
			all = append(all, s.Attached)
		}
	}
	slices.Sort(all)
	return all
}

func (r *results) attachedTable(b *strings.Builder, verb string) {
	levels := r.levels("attached")
	fmt.Fprintf(b, "| %s |", verb)
	for _, n := range levels {
		fmt.Fprintf(b, " %s |", thousands(n))
	}
	b.WriteString(" last against first |\n|---|" + strings.Repeat("---:|", len(levels)+1) + "\n")
	for _, c := range r.contenders("attached") {
		fmt.Fprintf(b, "| %s |", c)
		var first, last time.Duration
		for _, n := range levels {
			m := r.median("attached", c, verb, n)
			if m == 0 {
				b.WriteString(" – |")
				continue
			}
			if first == 0 {
				first = m
			}
			last = m
			fmt.Fprintf(b, " %s |", short(m))
		}
		fmt.Fprintf(b, " %s |\n", times(last, first))
	}
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

// short formats a duration with three digits.
func short(d time.Duration) string {
	switch {
	case d == 0:
		return "–"
	case d >= time.Second:
		return fmt.Sprintf("%.3g s", d.Seconds())
	case d >= time.Millisecond:
		return fmt.Sprintf("%.3g ms", float64(d.Microseconds())/1e3)
	}
	return fmt.Sprintf("%d µs", d.Microseconds())
}

func times(a, b time.Duration) string {
	if a == 0 || b == 0 {
		return "–"
	}
	return fmt.Sprintf("%.3g×", float64(a)/float64(b))
}

// thousands formats a number with separators.
func thousands(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}

func capital(s string) string { return strings.ToUpper(s[:1]) + s[1:] }
