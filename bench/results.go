package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// results is the content of results.json.
type results struct {
	Machine  machine
	Versions map[string]string
	Date     string
	Seed     uint64 // of the random order of contenders
	Series   []series
	Absent   []absent
}

// machine describes the machine of the run.
type machine struct {
	Kernel, CPU, Memory, FileSystem, Go string
	Cores                               int
}

// series holds one contender's durations of a verb in a scenario.
type series struct {
	Scenario  string
	Contender contender
	Verb      string
	Attached  int     // number of other containers attached
	AtOnce    int     // containers of a round
	Wall      []int64 // microseconds of each round
	Allocs    float64 // per operation, in the worker itself, without its child processes
	CPU       float64 `json:",omitempty"` // microseconds per operation, with child processes
	Programs  string  `json:",omitempty"` // "some" if operations started programs, else "none"
	Resident  int64   `json:",omitempty"` // most memory of the worker at the end of a round, in bytes
}

// each returns the microseconds of every round, for each of its containers.
func (s series) each() []float64 {
	all := make([]float64, len(s.Wall))
	for i, wall := range s.Wall {
		all[i] = float64(wall) / float64(s.AtOnce)
	}
	return all
}

// absent is a contender that did not take part.
type absent struct {
	Scenario  string
	Contender contender
	Attached  int `json:",omitempty"`
	Why       string
}

// find returns a series, or nil.
func (r *results) find(scenario string, c contender, verb string, attached int) *series {
	for i := range r.Series {
		s := &r.Series[i]
		if s.Scenario == scenario && s.Contender == c && s.Verb == verb && s.Attached == attached {
			return s
		}
	}
	return nil
}

// median returns the median microseconds, or zero if the series does not exist.
func (r *results) median(scenario string, c contender, verb string, attached int) float64 {
	if s := r.find(scenario, c, verb, attached); s != nil {
		return summarize(s.each()).Median
	}
	return 0
}

// complete returns an error unless all contenders took part. Only netavark
// may be missing: it need not be installed, and a table can say why.
func (r *results) complete() error {
	var errs []error
	for _, a := range r.Absent {
		if a.Contender != netavark && a.Attached == 0 {
			errs = append(errs, fmt.Errorf("scenario %s is without %s: %s", a.Scenario, a.Contender, a.Why))
		}
	}
	return errors.Join(errs...)
}

// The files of the measurements.
const (
	resultsFile   = "results.json"
	importersFile = "importers.json"
)

func readJSON(path string, into any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

func writeFigures(path string, figures any) error {
	data, err := encode(figures)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o644)
}

// encode returns figures in a form whose diffs are readable: each array of numbers
// is on one line.
func encode(figures any) ([]byte, error) {
	data, err := json.MarshalIndent(figures, "", "\t")
	if err != nil {
		return nil, err
	}
	numbers := regexp.MustCompile(`\[[\d\s,]+\]`)
	data = numbers.ReplaceAllFunc(data, func(array []byte) []byte { return bytes.Join(bytes.Fields(array), nil) })
	return append(data, '\n'), nil
}

// benchmarks returns the figures in the format of Go's benchmarks, for benchstat:
// a line is a round.
func (r *results) benchmarks() string {
	var b strings.Builder
	fmt.Fprintf(&b, "goos: linux\ncpu: %s\n", r.Machine.CPU)
	for _, s := range r.Series {
		name := strings.ReplaceAll(strings.TrimSuffix(string(s.Contender.Kind)+", "+s.Contender.Backend, ", "), " ", "_")
		for _, us := range s.each() {
			fmt.Fprintf(&b, "Benchmark%s/scenario=%s/attached=%d/contender=%s %d %.0f ns/op\n", s.Verb, s.Scenario, s.Attached, name, s.AtOnce, us*1000)
		}
	}
	return b.String()
}
