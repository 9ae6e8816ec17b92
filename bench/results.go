package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"time"
)

// results is the content of results.json.
type results struct {
	Machine  machine
	Versions map[string]string
	Date     string
	Seed     uint64 // of the random order of contenders
	Series   []series
	Counts   []count
	Absent   []absent
	Left     []left
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
	Attached  int // number of other containers attached
	AtOnce    int
	Rounds    int
	Micros    []int64 // one for each operation, in order of completion
	Wall      []int64 // one for each round
	Allocs    float64 // per operation, in the worker itself, without its child processes
	Bytes     float64
	CPU       float64 `json:",omitempty"` // microseconds per operation, with child processes
	Resident  int64   `json:",omitempty"` // most memory of the worker at the end of a round, in bytes
}

// rate returns the operations per second of the median round.
func (s series) rate() float64 {
	median, _ := medianWithError(s.each())
	if median == 0 {
		return 0
	}
	return 1e6 / median
}

// each returns the microseconds of every round, for each of its containers.
func (s series) each() []float64 {
	all := make([]float64, len(s.Wall))
	for i, wall := range s.Wall {
		all[i] = float64(wall) * float64(len(s.Wall)) / float64(len(s.Micros))
	}
	return all
}

// count is the number of processes that one operation starts.
type count struct {
	Scenario  string
	Contender contender
	Verb      string
	Processes float64
}

// absent is a contender that did not take part.
type absent struct {
	Scenario  string
	Contender contender
	Attached  int `json:",omitempty"`
	Why       string
}

// left lists a contender's leftovers after the DEL of all its containers.
type left struct {
	Scenario  string
	Contender contender
	Added     []string
	Removed   []string
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

// median returns zero if the series does not exist.
func (r *results) median(scenario string, c contender, verb string, attached int) time.Duration {
	if s := r.find(scenario, c, verb, attached); s != nil {
		return summarize(s.Micros).Median
	}
	return 0
}

func parseResults(data []byte) (*results, error) {
	r := &results{}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, err
	}
	return r, nil
}

// compactNumbers puts each array of numbers on one line, because the arrays are
// long.
func compactNumbers(data []byte) []byte {
	numbers := regexp.MustCompile(`\[[\d\s,]+\]`)
	return numbers.ReplaceAllFunc(data, func(array []byte) []byte {
		return bytes.Join(bytes.Fields(array), nil)
	})
}

// complete returns an error unless all required contenders took part and left
// nothing behind.
func (r *results) complete() error {
	var errs []error
	for _, a := range r.Absent {
		if a.Contender.must() && a.Attached == 0 {
			errs = append(errs, fmt.Errorf("scenario %s is without %s: %s", a.Scenario, a.Contender, a.Why))
		}
	}
	for _, l := range r.Left {
		if l.Contender.own() {
			errs = append(errs, fmt.Errorf("scenario %s: %s left %q and took %q", l.Scenario, l.Contender, l.Added, l.Removed))
		}
	}
	return errors.Join(errs...)
}

// encode returns results.json in a form whose diffs are readable.
func (r *results) encode() ([]byte, error) {
	data, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return nil, err
	}
	return append(compactNumbers(data), '\n'), nil
}
