package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/embedcni/cni"
)

// client runs the allocations of a file of jobs on this host. It keeps no state but
// the library's records and runc's: after kill -9, the next one finds what runs.
type client struct {
	rt   attacher
	runc runc
	jobs string // the file
	out  *printer

	known map[string]bool // the allocations that this process has started or adopted
	ill   map[string]bool // those that did not answer when they were asked last
}

// attacher has the methods of a *cni.Runtime that the client calls.
type attacher interface {
	Setup(ctx context.Context, id, path string, opts ...cni.NamespaceOpts) (*cni.Result, error)
	Remove(ctx context.Context, id, path string, opts ...cni.NamespaceOpts) error
	Lookup(id string) (*cni.Result, error)
	Attachments() ([]cni.Attachment, error)
	Recover(ctx context.Context, opts ...cni.RecoverOption) (*cni.Report, error)
	Guard(ctx context.Context, o cni.GuardOptions) error
	CleanUp(ctx context.Context, t cni.CleanUpTarget) ([]string, error)
}

// owner tells this program's containers from those of other programs on the host.
const owner = "allocrunner"

// newClient makes a client whose files are below dir.
func newClient(dir, jobs, cgroup string, out io.Writer, logger *slog.Logger) (*client, error) {
	opts := []cni.Opt{
		cni.WithOwner(owner),
		cni.WithStateDir(stateDir(dir)),
		cni.WithPluginDir([]string{pluginDir(dir)}),
		cni.WithBuiltinPlugins(),
		cni.WithStrictPorts(), // no port that another program listens on
		cni.WithRetry(cni.Retry{Attempts: 3}),
		cni.WithLogger(logger),
		cni.WithLoNetwork,
	}
	for _, network := range networks() {
		opts = append(opts, cni.WithConfListBytes(network))
	}
	rt, err := cni.New(opts...)
	if err != nil {
		return nil, err
	}
	return &client{
		rt: rt, runc: runc{dir: dir, cgroup: cgroup}, jobs: jobs,
		out: &printer{to: out}, known: map[string]bool{}, ill: map[string]bool{},
	}, nil
}

func stateDir(dir string) string  { return filepath.Join(dir, "state") }
func pluginDir(dir string) string { return filepath.Join(dir, "plugins") }

// interval is the time between two looks at the tasks.
const interval = time.Second

// run works until ctx ends, and then stops everything. reload makes it read the jobs
// again at once.
func (c *client) run(ctx context.Context, reload <-chan os.Signal) (err error) {
	report, err := c.rt.Recover(ctx)
	if err != nil {
		return err
	}
	c.printRecovery(report)

	// Whatever reloads the firewall or deletes a bridge, the containers' parts come back.
	guarding, stop := context.WithCancel(context.WithoutCancel(ctx))
	guarded := make(chan error, 1)
	go func() { guarded <- c.rt.Guard(guarding, cni.GuardOptions{Report: c.printGuard}) }()
	defer func() {
		stop()
		err = errors.Join(err, <-guarded)
	}()

	tick := time.NewTicker(interval)
	defer tick.Stop()
	for ready := false; ; {
		wanted, err := loadJobs(c.jobs)
		if err == nil {
			err = c.reconcile(ctx, wanted)
		}
		switch {
		case ctx.Err() != nil:
			return c.stopAll(context.WithoutCancel(ctx))
		case err != nil:
			c.out.printf("not as wanted: %v", err)
		case !ready:
			ready = true
			c.out.printf("ready: %d allocations run", len(wanted))
		}
		select {
		case <-ctx.Done():
			return c.stopAll(context.WithoutCancel(ctx))
		case <-tick.C:
		case <-reload:
		}
	}
}

func (c *client) printRecovery(report *cni.Report) {
	for _, id := range report.Removed {
		c.out.printf("%s: was not attached completely, or is gone: cleaned up", id)
	}
	for id, why := range report.Kept {
		c.out.printf("%s: is not healthy: %v", id, why)
	}
	for _, problem := range []map[string]error{report.Failed, report.Skipped} {
		for id, why := range problem {
			c.out.printf("%s: not recovered: %v", id, why)
		}
	}
}

func (c *client) printGuard(e cni.GuardEvent) {
	isBusy := e.Kind == cni.GuardFailed && errors.Is(e.Err, cni.ErrBusy) // it is repeated
	if e.Kind != cni.GuardBegun && e.Kind != cni.GuardLooked && !isBusy {
		c.out.printf("guard: %s", e)
	}
}

// reconcile makes what runs what is wanted.
func (c *client) reconcile(ctx context.Context, wanted []allocation) error {
	tasks, err := c.runc.list(ctx)
	if err != nil {
		return err
	}
	attached, err := c.attached()
	if err != nil {
		return err
	}
	want := map[string]allocation{}
	for _, a := range wanted {
		want[a.ID] = a
	}
	var errs []error
	for _, id := range union(tasks, attached) {
		a, isWanted := want[id]
		reason := ""
		switch {
		case !isWanted:
			reason = "its job is gone"
		case tasks[id].Status != "running":
			reason = "its task is gone"
		case !attached[id]:
			reason = "its task has no network"
		case !c.known[id]:
			if err := c.adopt(a); err != nil {
				reason = err.Error()
			}
		}
		if reason != "" {
			delete(c.known, id)
			errs = append(errs, c.stop(ctx, id, reason))
		}
	}
	for id := range c.known {
		if _, runs := tasks[id]; !runs {
			delete(c.known, id) // somebody else has ended it
		}
	}
	errs = append(errs, c.startMissing(ctx, wanted))
	c.reportHealth(ctx, wanted)
	return errors.Join(errs...)
}

// attached returns the containers on record.
func (c *client) attached() (map[string]bool, error) {
	all, err := c.rt.Attachments()
	if err != nil {
		return nil, err
	}
	ids := map[string]bool{}
	for _, a := range all {
		if a.Owner == owner {
			ids[a.ContainerID] = true
		}
	}
	return ids, nil
}

// union returns the keys of both maps, in order.
func union(tasks map[string]task, attached map[string]bool) []string {
	ids := maps.Clone(attached)
	for id := range tasks {
		ids[id] = true
	}
	return slices.Sorted(maps.Keys(ids))
}

// adopt takes over an allocation that an earlier client has started.
func (c *client) adopt(a allocation) error {
	result, err := c.rt.Lookup(a.ID)
	if err != nil {
		return fmt.Errorf("it cannot be adopted: %w", err)
	}
	c.known[a.ID] = true
	c.out.printf("%s: adopted at %s", a.ID, where(result))
	return nil
}

// startMissing starts the allocations that do not run, all at once.
func (c *client) startMissing(ctx context.Context, wanted []allocation) error {
	errs := make([]error, len(wanted))
	var group sync.WaitGroup
	for i, a := range wanted {
		if c.known[a.ID] {
			continue
		}
		group.Add(1)
		go func() {
			defer group.Done()
			if err := c.start(ctx, a); err != nil {
				errs[i] = fmt.Errorf("%s: %w", a.ID, err)
			}
		}()
	}
	group.Wait()
	for i, a := range wanted {
		if errs[i] == nil {
			c.known[a.ID] = true
		}
	}
	return errors.Join(errs...)
}

// stopAll ends everything of this client's.
func (c *client) stopAll(ctx context.Context) error {
	tasks, err := c.runc.list(ctx)
	if err != nil {
		return err
	}
	attached, err := c.attached()
	if err != nil {
		return err
	}
	var errs []error
	for _, id := range union(tasks, attached) {
		errs = append(errs, c.stop(ctx, id, "the client ends"))
	}
	return errors.Join(errs...)
}

// printer prints whole lines, from several goroutines.
type printer struct {
	mu sync.Mutex
	to io.Writer
}

func (p *printer) printf(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.to, format+"\n", args...)
}
