package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/sandbox"
)

// options are the command's flags.
type options struct {
	out, docs, dir, only string
	budget               time.Duration
	seed                 uint64
	fromResults          bool
	importers            bool
	effort               effort
}

func parseFlags() options {
	o := options{effort: fullEffort}
	flag.StringVar(&o.out, "out", "results", "write results.json, importers.json, results.md and results.txt into `DIR`")
	flag.StringVar(&o.docs, "docs", "", "write the README's table, docs/cost.md and docs/cost.svg of the repository in `DIR` too")
	flag.StringVar(&o.dir, "dir", "", "keep the containers' state in a directory below `DIR` (default: that of temporary files)")
	quick := flag.Bool("quick", false, "take some three minutes, and fewer rounds")
	rounds := flag.Int("rounds", 0, "the `NUMBER` of rounds of the fast scenarios (default: 40; 10 with -quick)")
	flag.DurationVar(&o.budget, "budget", 0, "leave out rounds to be ready after this `TIME` (default: 27m; 3m with -quick)")
	flag.Uint64Var(&o.seed, "seed", 0, "draw the contenders' order with this `NUMBER` (default: another each time)")
	flag.StringVar(&o.only, "only", "", "run only these `SCENARIOS`, separated by commas")
	flag.BoolVar(&o.fromResults, "from-results", false, "measure nothing, and write the documents from the figures that are there")
	flag.BoolVar(&o.importers, "importers", false, "measure only what importers link")
	flag.Parse()
	budget := 27 * time.Minute
	if *quick {
		o.effort, budget = quickEffort, 3*time.Minute
	}
	o.effort.Rounds, o.budget = cmp.Or(*rounds, o.effort.Rounds), cmp.Or(o.budget, budget)
	return o
}

func main() {
	if text, ok := os.LookupEnv(workerVariable); ok {
		if err := runWorker(text, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "bench: worker:", err)
			os.Exit(1)
		}
		return
	}
	code, err := run(parseFlags())
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(max(code, 1))
	}
	os.Exit(code)
}

func run(o options) (code int, err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if o.importers {
		if err := weighInto(ctx, o.out); err != nil {
			return 1, err
		}
	}
	if o.fromResults || o.importers {
		return 0, render(o.out, o.docs)
	}
	inside, code, err := sandbox.Reexec(sandbox.Before(func() ([]string, error) {
		if err := weighInto(ctx, o.out); err != nil {
			return nil, err
		}
		return refplugins.Env(ctx, os.Stderr)
	}))
	if err != nil || !inside {
		return code, err
	}
	r, err := measureAll(ctx, o, os.Stderr)
	if err != nil {
		return 1, err
	}
	if err := writeFigures(filepath.Join(o.out, resultsFile), r); err != nil {
		return 1, err
	}
	return 0, errors.Join(render(o.out, o.docs), r.complete())
}

// weighInto measures what importers link, where there is a network.
func weighInto(ctx context.Context, dir string) error {
	found, err := weigh(ctx)
	if err != nil {
		return err
	}
	return writeFigures(filepath.Join(dir, importersFile), found)
}

// measureAll runs the plan in a temporary directory.
func measureAll(ctx context.Context, o options, progress io.Writer) (_ *results, err error) {
	scenarios, err := selected(plan(o.effort), o.only)
	if err != nil {
		return nil, err
	}
	plugins, err := refplugins.Dir(ctx, progress)
	if err != nil {
		return nil, err
	}
	if o.dir != "" {
		if err := os.MkdirAll(o.dir, 0o755); err != nil {
			return nil, err
		}
	}
	dir, err := os.MkdirTemp(o.dir, "bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	m, err := describe(ctx, dir)
	if err != nil {
		return nil, err
	}
	if o.seed == 0 {
		o.seed = rand.Uint64()
	}
	b := &bench{
		dir: dir, runDir: "/run/bench", plugins: plugins, peerMax: o.effort.Peers, end: time.Now().Add(o.budget), progress: progress,
		random:  rand.New(rand.NewPCG(o.seed, 0)),
		results: &results{Machine: m, Versions: versions(ctx), Date: time.Now().UTC().Format(time.DateOnly), Seed: o.seed},
	}
	b.say("seed %d", o.seed)
	return b.results, b.run(ctx, scenarios)
}

// selected returns the scenarios that only names.
func selected(all []scenario, only string) ([]scenario, error) {
	if only == "" {
		return all, nil
	}
	var chosen []scenario
	for name := range strings.SplitSeq(only, ",") {
		i := slices.IndexFunc(all, func(s scenario) bool { return s.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no scenario %q", name)
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}
