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
	b.WriteString("What it costs to attach a container to a bridge, masqueraded, with an address of host-local's and one port of\n" +
		"the host, all in one run (medians):\n\n| | ADD | DEL | 64 at once |\n|---|---:|---:|---:|\n")
	for _, c := range r.contenders("nat") {
		if c.Memory {
			continue
		}
		rate := "–"
		if s := r.find("crowd64", c, "ADD", 0); s != nil {
			rate = fmt.Sprintf("%.3g/s", s.rate())
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", c, short(r.median("nat", c, "ADD", 0)), short(r.median("nat", c, "DEL", 0)), rate)
	}
	m := r.Machine
	fmt.Fprintf(&b, "\n![cost of an ADD against attached containers](bench/results/cost.svg)\n\n"+
		"On %d cores of %s, Linux %s, state on %s. [All figures](bench/results/results.md), what was to be\nreached, and who is missing where; "+
		"`make bench` measures it again, without touching the machine.\n", m.Cores, m.CPU, m.Kernel, m.FileSystem)
	return b.String()
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
