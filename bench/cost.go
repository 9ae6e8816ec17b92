package main

import (
	"fmt"
	"slices"
	"strings"
)

// costSections are the parts of docs/cost.md below the lead: each has a table for each of its
// scenarios.
var costSections = []struct {
	heading, text string
	scenarios     []string
}{
	{"Beside other containers", "", []string{defaultAttached, "default-attached8", "attached", natMany}},
	{"Many at once", "", []string{"default8", defaultOften, natOften}},
	{"Many ports", "", []string{manyPorts}},
	{"Other networks", "", []string{"nat", "bridge", "loopback"}},
}

// costPage returns docs/cost.md.
func (r *results) costPage(i *importers) string {
	var b strings.Builder
	b.WriteString("# What an attachment costs\n\n")
	r.lead(&b, i)
	fmt.Fprintf(&b, `
This is the default conflist: %s. The network has no
other container. Each figure is the median of one run, in which all take turns; in brackets is how many times as fast as go-cni
it is.

![ADD and DEL of go-cni, embedcni and the floor](cost.svg)

| | |
|---|---|
| go-cni | go-cni and the reference plugins |
| %s | a program for go-cni that has changed nothing else; it runs the same executables |
| %s | the same executables; each call is observed |
| %s | `+"`WithBuiltinPlugins`"+`; none of these calls starts a program |
| floor | makes and deletes the same objects of the kernel, and does nothing else |
| netavark | Podman's network program |
`, strings.TrimPrefix(titles[workDefault], "the default conflist: "), oneLine, disk, ours)
	for _, section := range costSections {
		fmt.Fprintf(&b, "\n## %s\n", section.heading)
		for _, name := range section.scenarios {
			r.costTable(&b, scenarioOf(name))
		}
	}
	b.WriteString("\n## What an importer links\n\n" + i.markdown())
	m := r.Machine
	fmt.Fprintf(&b, "\n## The machine\n\n%s, %d cores, %s of memory, Linux %s, state on %s, %s, %s. "+
		"[results.md](../bench/results/results.md) has quartiles, allocations, versions and targets.\n\n"+
		"`make bench` measures again, in at most half an hour and in namespaces of its own, and writes this page. "+
		"`cd bench && go run . -from-results -docs ..` writes it from the figures that are there.\n",
		m.CPU, m.Cores, m.Memory, m.Kernel, m.FileSystem, m.Go, r.Date)
	return b.String()
}

// lead writes the page's first table: the default conflist, with a column for each contender.
func (r *results) lead(b *strings.Builder, i *importers) {
	s, often := scenarioOf("default"), scenarioOf(defaultOften)
	head := []string{""}
	rows := [][]string{{verbADD}, {"CHECK"}, {verbDEL},
		{"64 ADDs at once, a second"}, {"64 DELs at once, a second"}, {"CPU of an ADD"}, {"memory of the program"}, {"size of the smallest program"}}
	for _, c := range s.Contenders {
		head = append(head, c.String())
		cpu, memory := r.spent(s.Name, c, 0)
		for n, text := range []string{
			r.costCell(s, c, verbADD, 0), r.costCell(s, c, verbCHECK, 0), r.costCell(s, c, verbDEL, 0),
			r.costCell(often, c, verbADD, 0), r.costCell(often, c, verbDEL, 0), cpu, memory, i.size(c),
		} {
			rows[n] = append(rows[n], text)
		}
	}
	table(b, head, rows)
}

// spent returns the processors' time of an ADD and the program's memory.
func (r *results) spent(scenario string, c contender, attached int) (cpu, memory string) {
	one := r.find(scenario, c, verbADD, attached)
	if one == nil {
		return "–", "–"
	}
	return micros(one.CPU), fmt.Sprintf("%.0f MB", float64(one.Resident)/1e6)
}

func scenarioOf(name string) scenario {
	all := plan(fullEffort)
	return all[slices.IndexFunc(all, func(s scenario) bool { return s.Name == name })]
}

// costTable writes the medians of a scenario, and why figures are missing.
func (r *results) costTable(b *strings.Builder, s scenario) {
	levels := r.levels(s.Name)
	if levels == nil {
		return
	}
	verbs := s.verbs(s.peer())
	head := []string{""}
	for _, n := range levels {
		for _, verb := range verbs {
			if s.AtOnce > 1 {
				verb += "s a second"
			}
			head = append(head, verb+beside(n))
		}
	}
	if len(levels) == 1 {
		head = append(head, "CPU of an ADD", "memory")
	}
	var rows [][]string
	for _, c := range s.Contenders {
		row := []string{c.String()}
		for _, n := range levels {
			for _, verb := range verbs {
				row = append(row, r.costCell(s, c, verb, n))
			}
		}
		if len(levels) == 1 {
			cpu, memory := r.spent(s.Name, c, levels[0])
			row = append(row, cpu, memory)
		}
		rows = append(rows, row)
	}
	fmt.Fprintf(b, "\n%s:\n\n", s.short())
	table(b, head, rows)
	if missing := r.missing(s, levels); missing != nil {
		fmt.Fprintf(b, "\nMissing: %s.\n", strings.Join(missing, "; "))
	}
}

// missing returns the contenders of which there are no figures, those with one reason together.
func (r *results) missing(s scenario, levels []int) (all []string) {
	for _, n := range levels {
		var reasons []string
		who := map[string][]string{}
		for _, c := range s.Contenders {
			if r.find(s.Name, c, verbADD, n) == nil {
				why := r.why(s.Name, c, n)
				if who[why] == nil {
					reasons = append(reasons, why)
				}
				who[why] = append(who[why], c.String())
			}
		}
		for _, why := range reasons {
			all = append(all, fmt.Sprintf("%s%s (%s)", strings.Join(who[why], ", "), beside(n), why))
		}
	}
	return all
}

// short describes the scenario in few words.
func (s scenario) short() string {
	text := titles[s.Work]
	if s.Work == workDefault {
		text = "the default conflist"
	}
	if s.AtOnce > 1 {
		text += fmt.Sprintf("; %d at once", s.AtOnce)
	}
	if s.Ports > 1 {
		text += fmt.Sprintf(" with %d ports, beside containers with %d each", s.Ports, s.StayPorts)
	}
	return capital(text)
}

func beside(n int) string {
	if n == 0 {
		return ""
	}
	return " beside " + thousands(n)
}

// costCell returns a median, or of containers at once their number a second, and how many
// times as fast as go-cni that is.
func (r *results) costCell(s scenario, c contender, verb string, attached int) string {
	took, peers := r.median(s.Name, c, verb, attached), r.median(s.Name, s.peer(), verb, attached)
	if took == 0 {
		return "–"
	}
	text := micros(took)
	if s.AtOnce > 1 {
		text = digits(1e6 / took)
	}
	if peers > 0 && c != s.peer() {
		text += " (" + times(peers, took) + ")"
	}
	return text
}
