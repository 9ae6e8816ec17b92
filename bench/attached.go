package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// defaultAttachedSection shows the cost of the default conflist with many
// containers attached.
func (r *results) defaultAttachedSection(b *strings.Builder) {
	for _, one := range []struct{ scenario, how string }{
		{defaultAttached, "alone"}, {defaultAttached8, "8 at once, the time of a round for each of them"},
	} {
		if !r.has(one.scenario) {
			continue
		}
		fmt.Fprintf(b, "\n## With others attached, %s\n\n%s. In brackets the ratio to the floor with as many attached.\n", one.how, capital(workDefault.title()))
		for _, verb := range []string{verbADD, verbDEL} {
			b.WriteString("\n")
			r.growthTable(b, one.scenario, verb)
		}
	}
}

// growthTable also says how much more an operation costs with the most attached,
// and how many times the floor's that is.
func (r *results) growthTable(b *strings.Builder, scenario, verb string) {
	levels := r.levels(scenario)
	r.levelsHead(b, verb, levels, "more", "against the floor's more")
	for _, c := range r.entered(scenario) {
		if !r.took(scenario, c) {
			r.missing(b, scenario, c, len(levels)+2)
			continue
		}
		fmt.Fprintf(b, "| %s |", c)
		for _, n := range levels {
			took := r.inTurns(scenario, c, verb, n)
			if took == 0 {
				b.WriteString(" – |")
				continue
			}
			fmt.Fprintf(b, " %s (%s) |", short(took), times(took, r.inTurns(scenario, theFloor(), verb, n)))
		}
		longer, _, ok := r.growth(scenario, c, verb)
		floor, _, okFloor := r.growth(scenario, theFloor(), verb)
		if !ok {
			b.WriteString(" – | – |\n")
			continue
		}
		against := "–"
		if okFloor && floor > 0 {
			against = digits(longer/floor) + "×"
		}
		fmt.Fprintf(b, " %s | %s |\n", more(longer), against)
	}
}

func (r *results) levelsHead(b *strings.Builder, title string, levels []int, last ...string) {
	fmt.Fprintf(b, "| %s |", title)
	for _, n := range levels {
		fmt.Fprintf(b, " %s |", thousands(n))
	}
	for _, column := range last {
		fmt.Fprintf(b, " %s |", column)
	}
	b.WriteString("\n|---|" + strings.Repeat("---:|", len(levels)+len(last)) + "\n")
}

func (r *results) attachedSection(b *strings.Builder) {
	if !r.has("attached") {
		return
	}
	b.WriteString("\n## Attached containers\n\nADD, then DEL, with so many attached already, 1,000 to a bridge: " +
		workNAT.title() + ". In brackets the ratio to the floor with as many attached.\n\n![cost of an ADD](cost.svg)\n")
	for _, verb := range []string{verbADD, verbDEL} {
		b.WriteString("\n")
		r.attachedTable(b, verb)
	}
}

func (r *results) attachedTable(b *strings.Builder, verb string) {
	levels := r.levels("attached")
	r.levelsHead(b, verb, levels, "last against first")
	for _, c := range r.entered("attached") {
		if !r.took("attached", c) {
			r.missing(b, "attached", c, len(levels)+1)
			continue
		}
		fmt.Fprintf(b, "| %s |", c)
		var first, last time.Duration
		for _, n := range levels {
			m := r.median("attached", c, verb, n)
			if m == 0 {
				b.WriteString(" – |")
				continue
			}
			first, last = cmp.Or(first, m), m
			fmt.Fprintf(b, " %s (%s) |", short(m), times(m, r.median("attached", theFloor(), verb, n)))
		}
		fmt.Fprintf(b, " %s |\n", times(last, first))
	}
}

// manySection shows the largest scenario.
func (r *results) manySection(b *strings.Builder) {
	if !r.has(nativeMany) {
		return
	}
	for _, n := range r.levels(nativeMany) {
		fmt.Fprintf(b, "\n## %s containers\n\n%s, 1,000 to a bridge.\n\n"+
			"| | ADD median | against floor | DEL median | against floor | resident memory of the process |\n|---|---:|---:|---:|---:|---:|\n",
			thousands(n), capital(workNAT.title()))
		for _, c := range r.contenders(nativeMany) {
			fmt.Fprintf(b, "| %s |", c)
			for _, verb := range []string{verbADD, verbDEL} {
				took := r.median(nativeMany, c, verb, n)
				fmt.Fprintf(b, " %s | %s |", short(took), times(took, r.median(nativeMany, theFloor(), verb, n)))
			}
			memory := "–"
			if s := r.find(nativeMany, c, verbADD, n); s != nil {
				memory = digits(float64(s.Resident)/1e6) + " MB"
			}
			fmt.Fprintf(b, " %s |\n", memory)
		}
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
