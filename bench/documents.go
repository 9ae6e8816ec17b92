package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// These marks enclose the README's table.
const (
	sectionBegin = "<!-- made by make bench: begin -->\n"
	sectionEnd   = "<!-- made by make bench: end -->\n"
)

// tables returns the texts that stand beside the figures, by name. The one for benchstat is
// not committed.
func (r *results) tables() map[string]string {
	return map[string]string{"results.md": r.markdown(), "results.txt": r.benchmarks()}
}

// documents returns the documents that are made from the figures, by their paths in the
// repository. readme is the README's present text, of which one table is replaced.
func documents(r *results, i *importers, readme string) (map[string]string, error) {
	readme, err := replaceSection(readme, r.readmeTable())
	if err != nil {
		return nil, fmt.Errorf("README.md: %w", err)
	}
	return map[string]string{"README.md": readme, "docs/cost.md": r.costPage(i), "docs/cost.svg": r.plot()}, nil
}

// render writes the texts that are made from the figures in the directory of results, and
// with a repository its documents.
func render(dir, repository string) error {
	r, i, err := readFigures(dir)
	if err != nil {
		return err
	}
	if err := writeAll(dir, r.tables()); err != nil || repository == "" {
		return err
	}
	readme, err := os.ReadFile(filepath.Join(repository, "README.md"))
	if err != nil {
		return err
	}
	all, err := documents(r, i, string(readme))
	if err != nil {
		return err
	}
	return writeAll(repository, all)
}

func writeAll(dir string, texts map[string]string) error {
	for name, text := range texts {
		if err := os.WriteFile(filepath.Join(dir, filepath.FromSlash(name)), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// readFigures reads the measurements.
func readFigures(dir string) (*results, *importers, error) {
	r, i := &results{}, &importers{}
	for name, into := range map[string]any{resultsFile: r, importersFile: i} {
		if err := readJSON(filepath.Join(dir, name), into); err != nil {
			return nil, nil, err
		}
	}
	return r, i, nil
}

// readmeTable returns the README's one row: both runtimes' medians, side by side.
func (r *results) readmeTable() string {
	pair := func(scenario, verb string, text func(float64) string) string {
		theirs, own := text(r.median(scenario, goCNI, verb, 0)), text(r.median(scenario, ours, verb, 0))
		_, unit, _ := strings.Cut(own, " ")
		return strings.TrimSuffix(theirs, " "+unit) + " / " + own
	}
	var b strings.Builder
	table(&b, []string{"default conflist: bridge, ipMasq, portmap, firewall, tuning", verbADD, verbDEL, "64 at once"}, [][]string{{
		goCNI.String() + " / " + ours.String(), pair("default", verbADD, micros), pair("default", verbDEL, micros), pair(defaultOften, verbADD, perSecond),
	}})
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
