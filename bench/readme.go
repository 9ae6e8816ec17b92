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
		"long the first row takes, and of a rate, how many times the first row's it is.\n")
	for _, one := range []struct {
		scenario, title string
		crowd           string
	}{
		{"default", "The default conflist of containerd, nerdctl and Podman: masqueraded, an address of host-local's, one port of\n" +
			"the host, firewall and tuning; no backend named, on a host with iptables-nft", crowdName(workDefault, 64)},
		{"nat", "Masqueraded, with an address of host-local's and one port of the host", crowdName(workNAT, 64)},
	} {
		if r.has(one.scenario) {
			fmt.Fprintf(&b, "\n%s:\n\n", one.title)
			r.summaryTable(&b, one.scenario, one.crowd)
		}
	}
	m := r.Machine
	fmt.Fprintf(&b, "\n![cost of an ADD against attached containers](bench/results/cost.svg)\n\n"+
		"On %d cores of %s, Linux %s, state on %s. [All figures](bench/results/results.md), what was to be\nreached, and who is missing where; "+
		"`make bench` measures it again, without touching the machine.\n", m.Cores, m.CPU, m.Kernel, m.FileSystem)
	return b.String()
}

func (r *results) summaryTable(b *strings.Builder, scenario, crowd string) {
	peer := r.peer(scenario)
	b.WriteString("| | ADD | DEL | 64 at once |\n|---|---:|---:|---:|\n")
	for _, c := range r.entered(scenario) {
		if c.Memory {
			continue
		}
		if !r.took(scenario, c) {
			r.missing(b, scenario, c, 3)
			continue
		}
		fmt.Fprintf(b, "| %s |", c)
		for _, verb := range []string{verbADD, verbDEL} {
			took := r.median(scenario, c, verb, 0)
			fmt.Fprintf(b, " %s (%s) |", short(took), times(r.median(scenario, peer, verb, 0), took))
		}
		one, other := r.find(crowd, c, verbADD, 0), r.find(crowd, peer, verbADD, 0)
		if one == nil || other == nil || other.rate() == 0 {
			b.WriteString(" – |\n")
			continue
		}
		fmt.Fprintf(b, " %s (%s×) |\n", perSecond(one.rate()), digits(one.rate()/other.rate()))
	}
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
