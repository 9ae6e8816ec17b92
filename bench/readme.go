package main

import (
	"errors"
	"fmt"
	"strings"
)

// These marks enclose the README's section.
const (
	sectionBegin = "<!-- made by make bench: begin -->\n"
	sectionEnd   = "<!-- made by make bench: end -->\n"
)

// summarySection returns the README's section.
func (r *results) summarySection() string {
	var b strings.Builder
	b.WriteString("What it costs to attach a container to a bridge, all in one run (medians). In brackets: how many times as\n" +
		"long the first row takes.\n")
	for _, s := range plan(fullEffort) {
		often, ok := map[string]string{"default": defaultOften, "nat": natOften}[s.Name]
		if !ok || r.levels(s.Name) == nil {
			continue
		}
		fmt.Fprintf(&b, "\n%s:\n\n", s.title())
		var rows [][]string
		for _, c := range s.Contenders {
			rows = append(rows, r.summaryRow(c, s, often))
		}
		table(&b, []string{"", "ADD", "DEL", "64 at once"}, rows)
	}
	m := r.Machine
	fmt.Fprintf(&b, "\nMeasured on %d cores (%s) with Linux %s and state on %s. [results.md](bench/results/results.md) has all\nfigures, the targets, and the contenders that are missing; "+
		"`make bench` repeats the measurement without touching the machine.\n", m.Cores, m.CPU, m.Kernel, m.FileSystem)
	return b.String()
}

func (r *results) summaryRow(c contender, s scenario, often string) []string {
	cells := []string{c.String()}
	if r.find(s.Name, c, verbADD, 0) == nil {
		return append(cells, "missing: "+r.why(s.Name, c, 0))
	}
	for _, verb := range []string{verbADD, verbDEL} {
		took := r.median(s.Name, c, verb, 0)
		cells = append(cells, fmt.Sprintf("%s (%s)", micros(took), times(r.median(s.Name, s.peer(), verb, 0), took)))
	}
	took := r.median(often, c, verbADD, 0)
	if took == 0 {
		return append(cells, "–")
	}
	return append(cells, fmt.Sprintf("%s/s (%s)", digits(1e6/took), times(r.median(often, s.peer(), verbADD, 0), took)))
}

// replaceSection replaces the section between the marks of a text.
func replaceSection(text, section string) (string, error) {
	before, rest, ok := strings.Cut(text, sectionBegin)
	_, after, closed := strings.Cut(rest, sectionEnd)
	if !ok || !closed {
		return "", errors.New("there are no marks for the benchmarks' section: " + strings.TrimSpace(sectionBegin))
	}
	return before + sectionBegin + section + sectionEnd + after, nil
}
