package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// show is the story's stage.
type show struct {
	out     io.Writer
	dir     string
	cgroup  string
	verbose bool
	client  *process // the one that runs
	reaper  *reaper
}

// story shows the life of a client, from beginning to end.
func story(ctx context.Context, out io.Writer, verbose bool) (err error) {
	s := &show{out: out, dir: "/run/allocrunner", cgroup: fmt.Sprintf("embedcni-allocrunner-%d", os.Getpid()), verbose: verbose}
	if err := s.prepare(); err != nil {
		return err
	}
	s.reaper = newReaper()
	defer s.reaper.stop()
	before, err := s.audit(ctx)
	if err != nil {
		return err
	}
	err = s.play(ctx)
	if err != nil && s.client != nil {
		err = errors.Join(err, s.rescue())
	}
	return errors.Join(err, s.leftovers(context.WithoutCancel(ctx), before))
}

// play is what happens.
func (s *show) play(ctx context.Context) error {
	for _, act := range []struct {
		title string
		play  func(context.Context) error
	}{
		{"A client starts jobs. A plugin hangs in one of them, and the client is killed (kill -9).", s.startAndKill},
		{"Without a client, containers go on; one of them dies. The next client adopts, cleans up and starts.", s.restart},
		{"Somebody reloads the firewall, which flushes all rules.", s.reload},
		{"A job ends whose plugin is gone for good.", s.losePlugin},
		{"The client ends, and with it all jobs.", s.end},
	} {
		fmt.Fprintf(s.out, "\n%s\n", act.title)
		if err := act.play(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (s *show) hang() string     { return filepath.Join(pluginDir(s.dir), "hang") }
func (s *show) jobsFile() string { return filepath.Join(s.dir, "jobs.json") }

// prepare writes the file of jobs, and installs the plugin.
func (s *show) prepare() error {
	for _, dir := range []string{s.dir, pluginDir(s.dir), stateDir(s.dir), filepath.Join(s.dir, "allocs"), filepath.Join(s.dir, "runc")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if _, err := exec.LookPath("nft"); err != nil {
		return missing("nftables", err)
	}
	r := runc{dir: s.dir, cgroup: s.cgroup}
	return errors.Join(r.install(),
		os.WriteFile(s.jobsFile(), exampleJobs, 0o644),
		copyFile("/proc/self/exe", filepath.Join(pluginDir(s.dir), "tenant"), 0o755))
}

func (s *show) startAndKill(ctx context.Context) error {
	if err := os.WriteFile(s.hang(), nil, 0o644); err != nil {
		return err
	}
	if err := s.begin(); err != nil {
		return err
	}
	for _, id := range []string{"web-0", "web-1", "api-0"} {
		if err := s.client.await(ctx, id+": runs at "); err != nil {
			return err
		}
	}
	if err := awaitFile(ctx, filepath.Join(pluginDir(s.dir), "hangs")); err != nil {
		return err
	}
	if err := s.client.kill(); err != nil {
		return err
	}
	s.say("the client is dead; shop-0 is half attached, and its plugin hangs on")
	return os.Remove(s.hang())
}

func (s *show) restart(ctx context.Context) error {
	r := runc{dir: s.dir, cgroup: s.cgroup}
	if err := awaitNil(ctx, func() error { return ask(ctx, 8080, "api-0") }); err != nil {
		return fmt.Errorf("api-0, without a client: %w", err)
	}
	s.say("api-0 answers on host port 8080")
	if err := s.reaper.output(r.command(ctx, "kill", "web-1", "KILL")); err != nil {
		return err
	}
	s.say("web-1 is killed")
	if err := s.begin(); err != nil {
		return err
	}
	return s.client.awaitAll(ctx, "shop-0: was not attached completely", "web-0: adopted", "api-0: adopted",
		"web-1: stopped, since its task is gone", "web-1: runs at", "shop-0: runs at", "ready: 4 allocations run")
}

func (s *show) reload(ctx context.Context) error {
	if err := s.reaper.output(exec.CommandContext(ctx, "nft", "flush", "ruleset")); err != nil {
		return err
	}
	begin := time.Now()
	if err := s.client.await(ctx, "guard: repaired container api-0"); err != nil {
		return err
	}
	if err := awaitNil(ctx, func() error { return ask(ctx, 8080, "api-0") }); err != nil {
		return fmt.Errorf("api-0, after the reload: %w", err)
	}
	s.say("api-0 answers on host port 8080 again, %v after the flush", time.Since(begin).Round(time.Millisecond))
	// The guard repairs one container after the other. Until the last one is repaired, the
	// client finds that it does not answer, which is no part of the next acts.
	return s.client.awaitAll(ctx, "guard: repaired container shop-0", "guard: repaired container web-0", "guard: repaired container web-1")
}

func (s *show) losePlugin(ctx context.Context) error {
	if err := os.Remove(filepath.Join(pluginDir(s.dir), "tenant")); err != nil {
		return err
	}
	if err := s.withoutJob("shop"); err != nil {
		return err
	}
	if err := s.client.signal(reloadSignal); err != nil {
		return err
	}
	return s.client.awaitAll(ctx, "shop-0: cannot be removed", "shop-0: cleaned up eth0 of tenants", "shop-0: stopped, since its job is gone")
}

// withoutJob takes a job out of the file.
func (s *show) withoutJob(name string) error {
	var file struct {
		Jobs []job `json:"jobs"`
	}
	if err := json.Unmarshal(exampleJobs, &file); err != nil {
		return err
	}
	kept := file.Jobs[:0]
	for _, j := range file.Jobs {
		if j.Name != name {
			kept = append(kept, j)
		}
	}
	file.Jobs = kept
	data, err := json.MarshalIndent(file, "", "  ")
	if err != nil {
		return err
	}
	tmp := s.jobsFile() + ".new"
	return errors.Join(os.WriteFile(tmp, data, 0o644), os.Rename(tmp, s.jobsFile()))
}

func (s *show) end(ctx context.Context) error {
	if err := s.client.signal(endSignal); err != nil {
		return err
	}
	if err := s.client.awaitAll(ctx, "api-0: stopped", "web-0: stopped", "web-1: stopped"); err != nil {
		return err
	}
	return s.client.wait(ctx)
}

// rescue ends a client that the story has left, and everything that it runs.
func (s *show) rescue() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if !s.client.hasEnded() {
		return errors.Join(s.client.signal(endSignal), s.client.wait(ctx))
	}
	c, err := newClient(s.dir, s.jobsFile(), s.cgroup, s.out, nil)
	if err != nil {
		return err
	}
	return s.reaper.alone(func() error { return c.stopAll(ctx) })
}

func (s *show) say(format string, args ...any) { fmt.Fprintf(s.out, "  "+format+"\n", args...) }
