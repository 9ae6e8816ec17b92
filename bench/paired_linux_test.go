package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/netns"
)

// BenchmarkPair attaches containers by go-cni and, after the change of the import
// line, by this library, in one process and one after the other. ms is the median of
// go-cni's time, more-ms what ours takes longer: the median of the differences within
// a pair, and the quartiles. CPU time and context switches are medians as well.
//
//	go test -run '^$' -bench Pair -benchtime 200x
func BenchmarkPair(b *testing.B) {
	plugins := expect.Value(refplugins.Dir(b.Context(), io.Discard))(b)
	for _, work := range []work{workBridge, workPtpNAT, workDefault} {
		b.Run(string(work), func(b *testing.B) {
			cmd, err := workerCommand(spec{Contender: oneLine, Work: work, Dir: b.TempDir(), RunDir: "/run/" + b.Name(), Plugins: plugins})
			expect.NoError(b, err)
			cmd.Env = append(cmd.Env, fmt.Sprintf("%s=%d", pairVariable, b.N))
			out := expect.Value(cmd.Output())(b)
			var all pairs
			expect.NoError(b, json.Unmarshal(out, &all))
			b.ReportMetric(0, "ns/op")
			for _, verb := range []string{verbADD, verbDEL} {
				reportPairs(b, strings.ToLower(verb), all[verb])
			}
		})
	}
}

func reportPairs(b *testing.B, verb string, pairs [][2]usage) {
	value := func(which int, of func(usage) float64) (all []float64) {
		for _, p := range pairs {
			all = append(all, of(p[which]))
		}
		return all
	}
	ms := func(d time.Duration) float64 { return d.Seconds() * 1000 }
	for name, of := range map[string]func(usage) float64{
		"ms":       func(u usage) float64 { return ms(u.Took) },
		"cpu-ms":   func(u usage) float64 { return ms(u.CPU) },
		"switches": func(u usage) float64 { return float64(u.Switches) },
	} {
		theirs, more := value(0, of), value(1, of)
		b.ReportMetric(summarize(theirs).Median, fmt.Sprintf("%s-%s", verb, name))
		for i := range more {
			more[i] -= theirs[i]
		}
		b.ReportMetric(summarize(more).Median, fmt.Sprintf("%s-more-%s", verb, name))
		if name == "ms" {
			b.ReportMetric(summarize(more).Lower, fmt.Sprintf("%s-more-%s-q1", verb, name))
			b.ReportMetric(summarize(more).Upper, fmt.Sprintf("%s-more-%s-q3", verb, name))
		}
	}
}

// pairVariable makes a worker do so many pairs, and print them.
const pairVariable = "EMBEDCNI_BENCH_PAIRS"

// pairs are go-cni's and this library's calls, by verb.
type pairs map[string][][2]usage

func pairMain(text string) error {
	const warm = 3 // the first containers make what all share
	count, err := strconv.Atoi(os.Getenv(pairVariable))
	if err != nil {
		return err
	}
	w := &worker{}
	if err := json.Unmarshal([]byte(text), &w.spec); err != nil {
		return err
	}
	if err := w.begin(); err != nil {
		return err
	}
	if _, err := w.pair(context.Background(), 0, warm); err != nil {
		return err
	}
	all, err := w.pair(context.Background(), warm, count)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(all)
}

// paired are the contenders of a pairing: a program before and after the change
// of its import line.
func paired() [2]contender { return [2]contender{goCNI, oneLine} }

// pair attaches and detaches containers in this process by both contenders, one
// container of each after the other, so that they share the machine's moment. The
// first of a pair takes turns.
func (w *worker) pair(ctx context.Context, first, count int) (pairs, error) {
	var both [2]*host
	for i, c := range paired() {
		s := w.spec
		s.Contender = c
		var err error
		if both[i], err = newHost(s); err != nil {
			return nil, err
		}
	}
	r := make(pairs)
	for i := first; i < first+count; i++ {
		var adds, dels [2]usage
		for turn := range both {
			which := (i + turn) % 2
			c := container{N: i, ID: fmt.Sprintf("pair-%d-%d", i, which), Ports: []uint16{uint16(20000 + 2*i + which)}}
			c.Path = filepath.Join(w.spec.RunDir, "netns", c.ID)
			var err error
			adds[which], dels[which], err = w.attachOne(ctx, both[which], c)
			if err != nil {
				return r, fmt.Errorf("%s: %w", paired()[which], err)
			}
		}
		r[verbADD] = append(r[verbADD], adds)
		r[verbDEL] = append(r[verbDEL], dels)
	}
	return r, nil
}

// attachOne measures an ADD and a DEL of a container in a namespace of its own.
func (*worker) attachOne(ctx context.Context, h *host, c container) (add, del usage, err error) {
	ns, err := netns.Create(c.Path)
	if err != nil {
		return add, del, err
	}
	defer func() { err = errors.Join(err, ns.Close(), netns.Remove(c.Path)) }()
	if add, err = measureOne(func() error { return h.do(ctx, verbADD, c) }); err != nil {
		return add, del, err
	}
	del, err = measureOne(func() error { return h.do(ctx, verbDEL, c) })
	return add, del, err
}

func measureOne(call func() error) (usage, error) {
	before, err := spent()
	if err != nil {
		return usage{}, err
	}
	begun := time.Now()
	err = call()
	took := time.Since(begun)
	after, serr := spent()
	return usage{Took: took, CPU: after.CPU - before.CPU, Switches: after.Switches - before.Switches}, errors.Join(err, serr)
}
