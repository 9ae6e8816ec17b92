package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"time"
)

// results are what results.json holds.
type results struct {
	Machine  machine
	Versions map[string]string
	Date     string
	Seed     uint64 // the contenders' order in the first round is drawn with it
	Series   []series
	Counts   []count
	Absent   []absent
	Left     []left
}

// machine is where it ran.
type machine struct {
	Kernel, CPU, Memory, FileSystem, Go string
	Cores                               int
}

// series is one contender's durations of a verb in a scenario.
type series struct {
	Scenario  string
	Contender contender
	Verb      string // ADD or DEL
	Attached  int    // how many others were attached
	AtOnce    int
	Rounds    int
	Micros    []int64 // one for each operation, in the order in which they ended
	Wall      []int64 // one for each round
	Allocs    float64 // per operation; of this process, not of those it starts
	Bytes     float64
}

// rate is how many operations a second there were, in the median round.
func (s series) rate() float64 {
	wall := summarize(s.Wall).Median
	if wall == 0 {
		return 0
	}
	return float64(len(s.Micros)) / float64(len(s.Wall)) / wall.Seconds()
}

// count is how many processes one operation starts.
type count struct {
	Scenario  string
	Contender contender
	Verb      string
	Processes float64
}

// absent is a contender that took no part.
type absent struct {
	Scenario  string
	Contender contender
	Attached  int `json:",omitempty"`
	Why       string
}

// left is what a contender left behind when all its containers were detached.
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

// median is zero if there is no such series.
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

// compactNumbers puts arrays of numbers, which are long, on one line each.
func compactNumbers(data []byte) []byte {
	numbers := regexp.MustCompile(`\[[\d\s,]+\]`)
	return numbers.ReplaceAllFunc(data, func(array []byte) []byte {
		return bytes.Join(bytes.Fields(array), nil)
	})
}

// complete is an error unless all were there that had to be, and left nothing.
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

// encode makes results.json, whose change can be read.
func (r *results) encode() ([]byte, error) {
	data, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return nil, err
	}
	return append(compactNumbers(data), '\n'), nil
}
