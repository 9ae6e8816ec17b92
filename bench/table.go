package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// markdown returns results.md.
func (r *results) markdown() string {
	var b strings.Builder
	b.WriteString("# What it costs to attach a container\n\nMade by `make bench`; `results.json` has every duration, and `results.txt`, which is beside it after a run, has them for benchstat.\n\n")
	m := r.Machine
	fmt.Fprintf(&b, "%s, %d cores, %s of memory, Linux %s, state on %s, %s, %s.", m.CPU, m.Cores, m.Memory, m.Kernel, m.FileSystem, m.Go, r.Date)
	for _, name := range slices.Sorted(maps.Keys(r.Versions)) {
		fmt.Fprintf(&b, " %s %s.", capital(name), r.Versions[name])
	}
	fmt.Fprintf(&b, "\n\nContenders take turns, whoever began a round ends the next; the first order was drawn with the seed %d. "+
		"What was first after the start is not counted. A machine that does other things as well makes all of it slower: "+
		"least is closest to the work itself. The floor makes the objects of the kernel and nothing else. The record of attachments is on.\n", r.Seed)
	for _, s := range plan(fullEffort) {
		r.section(&b, s)
	}
	b.WriteString("\n## Targets\n\nRatios are of medians of one run.\n\n")
	var rows [][]string
	for _, t := range targets() {
		rows = append(rows, t.row(r))
	}
	table(&b, []string{"", "target", "measured", "reached"}, rows)
	return b.String()
}

// table writes a table of text and numbers.
func table(b *strings.Builder, head []string, rows [][]string) {
	fmt.Fprintf(b, "| %s |\n|---|%s\n", strings.Join(head, " | "), strings.Repeat("---:|", len(head)-1))
	for _, row := range rows {
		// A missing contender has no other cells than the reason.
		fmt.Fprintf(b, "| %s |%s\n", strings.Join(row, " | "), strings.Repeat(" |", len(head)-len(row)))
	}
}

// section writes a scenario's tables, one for each number of attached containers, if it was run.
func (r *results) section(b *strings.Builder, s scenario) {
	levels, peer := r.levels(s.Name), s.peer()
	if levels == nil {
		return
	}
	fmt.Fprintf(b, "\n## %s\n\n%s.\n", capital(s.Name), s.title())
	verbs := s.verbs(peer)
	head := []string{""}
	for _, verb := range verbs {
		head = append(head, verb+" median", "quartiles", "least", "against floor", peer.String()+" takes")
	}
	head = append(head, "CPU of an ADD", "allocations", "programs", "memory", "rounds")
	for _, n := range levels {
		b.WriteString("\n")
		if n > 0 {
			fmt.Fprintf(b, "With %s attached:\n\n", thousands(n))
		}
		var rows [][]string
		for _, c := range s.Contenders {
			rows = append(rows, r.row(s, c, verbs, peer, n))
		}
		table(b, head, rows)
	}
}

// row returns a contender's cells in a scenario.
func (r *results) row(s scenario, c contender, verbs []string, peer contender, attached int) []string {
	cells := []string{c.String()}
	one := r.find(s.Name, c, verbADD, attached)
	if one == nil {
		return append(cells, "missing: "+r.why(s.Name, c, attached))
	}
	for _, verb := range verbs {
		var x summary
		if found := r.find(s.Name, c, verb, attached); found != nil {
			x = summarize(found.each())
		}
		quartiles := "–"
		if x.Median > 0 {
			quartiles = micros(x.Lower) + " – " + micros(x.Upper)
		}
		cells = append(cells, micros(x.Median), quartiles, micros(x.Least),
			times(x.Median, r.median(s.Name, bare, verb, attached)), times(r.median(s.Name, peer, verb, attached), x.Median))
	}
	return append(cells, micros(one.CPU), fmt.Sprintf("%.0f", one.Allocs), cmp.Or(one.Programs, "–"),
		fmt.Sprintf("%.0f MB", float64(one.Resident)/1e6), fmt.Sprint(len(one.Wall)))
}

// why returns why a contender is missing: from the begin, or with so many attached.
func (r *results) why(scenario string, c contender, attached int) string {
	for _, a := range r.Absent {
		if a.Scenario == scenario && a.Contender == c && (a.Attached == 0 || a.Attached <= attached) {
			return strings.ReplaceAll(strings.Join(strings.Fields(a.Why), " "), "|", `\|`)
		}
	}
	return "not measured"
}

// peer returns the go-cni of a scenario that others are compared with.
func (s scenario) peer() contender {
	for _, c := range s.Contenders {
		if c.Kind == kindGoCNI {
			return c
		}
	}
	return goCNI
}

// levels returns a scenario's measured numbers of attached containers.
func (r *results) levels(scenario string) []int {
	var all []int
	for _, s := range r.Series {
		if s.Scenario == scenario {
			all = append(all, s.Attached)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
