package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/embedcni/cni/cnitest"
)

// start runs the program again in namespaces of its own, which runs the story.
func start(ctx context.Context) (code int, err error) {
	inside, code, err := reexec(ctx)
	if err != nil || !inside {
		return code, err
	}
	return 0, errors.Join(story(ctx, os.Stdout), ctx.Err())
}

// story is a day of a function provider.
func story(ctx context.Context, out io.Writer) (err error) {
	if err := removeCgroup(ctx); err != nil { // of a run that was killed
		return err
	}
	before, err := audit(ctx)
	if err != nil {
		return err
	}
	daemon, err := startContainerd(ctx)
	if err != nil {
		return err
	}
	// Leftovers matter most if the context is over, so all of this happens then too.
	detached := context.WithoutCancel(ctx)
	defer func() {
		err = errors.Join(err, daemon.stop(), removeCgroup(detached), printLeftovers(detached, out, before))
	}()
	fmt.Fprintf(out, "containerd %s serves at %s\n", daemon.version, socket)

	p, err := newProvider(ctx, daemon.client)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close(detached)) }()
	fmt.Fprintf(out, "network %q is in %s\n", network, confFile)
	layers, err := importImage(ctx, daemon.client)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "image %s of %d bytes is imported\n", image, layers)
	return operate(ctx, out, p)
}

// operate deploys a function, scales it, loses a task, and deletes it.
func operate(ctx context.Context, out io.Writer, p *Provider) error {
	gateway, stop, err := serve(p)
	if err != nil {
		return err
	}
	defer stop()
	steps := []struct {
		what string
		do   func() error
	}{
		{"deploy echo with 1 replica", func() error { return p.Deploy(ctx, "echo", image) }},
		{"", func() error { return printReplicas(out, p) }},
		{"", func() error { return ask(ctx, out, gateway, 1) }},
		{"scale echo to 10", func() error { return p.Scale(ctx, "echo", 10) }},
		{"", func() error { return printReplicas(out, p) }},
		{"", func() error { return ask(ctx, out, gateway, 10) }},
		{"the task of echo-3 is killed behind our back", func() error { return p.killTask(ctx, "echo-3") }},
		{"delete echo-3: its process and its namespace are gone, its record is not", func() error { return p.Stop(ctx, "echo-3") }},
		{"", func() error { return ask(ctx, out, gateway, 9) }},
		{"scale echo to 0", func() error { return p.Scale(ctx, "echo", 0) }},
		{"", func() error { return ask(ctx, out, gateway, 0) }},
		{"delete echo", func() error { return p.Delete(ctx, "echo") }},
	}
	for _, s := range steps {
		begun := time.Now()
		if err := s.do(); err != nil {
			return fmt.Errorf("%s: %w", s.what, err)
		}
		if s.what != "" {
			fmt.Fprintf(out, "%s (%v)\n", s.what, time.Since(begun).Round(time.Millisecond))
		}
	}
	return nil
}

// serve runs the gateway. Its address is in this process's own network namespace.
func serve(p *Provider) (url string, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{Handler: p, ReadHeaderTimeout: 10 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l) // ends with Close
	}()
	return "http://" + l.Addr().String(), func() { _ = server.Close(); <-done }, nil
}

// ask sends each replica some requests through the gateway, and prints who has answered.
// Without replicas the gateway must say so.
func ask(ctx context.Context, out io.Writer, gateway string, replicas int) error {
	answers := map[string]int{}
	for range max(2*replicas, 1) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, gateway+"/function/echo?to=you", nil)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		body, err := io.ReadAll(resp.Body)
		if err = errors.Join(err, resp.Body.Close()); err != nil {
			return err
		}
		if want := http.StatusOK; replicas == 0 {
			fmt.Fprintf(out, "    GET /function/echo: %s\n", resp.Status)
			want = http.StatusServiceUnavailable
			if resp.StatusCode != want {
				return fmt.Errorf("the gateway answers %s, want %d", resp.Status, want)
			}
			return nil
		} else if resp.StatusCode != want {
			return fmt.Errorf("the gateway answers %s: %s", resp.Status, body)
		}
		answers[strings.TrimSpace(string(body))]++
	}
	for _, answer := range slices.Sorted(maps.Keys(answers)) {
		fmt.Fprintf(out, "    GET /function/echo, %d×: %s\n", answers[answer], answer)
	}
	if len(answers) != replicas {
		return fmt.Errorf("%d replicas have answered, want %d", len(answers), replicas)
	}
	return nil
}

// printReplicas prints each replica with its container's ID and address, as the library
// has them on record.
func printReplicas(out io.Writer, p *Provider) error {
	for _, r := range p.Replicas("echo") {
		result, err := p.net.Lookup(r.netID())
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "    %s is container %s with %s\n", r.name, r.netID(), result.IPv4().IP())
	}
	return nil
}

func audit(ctx context.Context) ([]string, error) {
	return cnitest.Audit(ctx, cnitest.Options{StateDirs: []string{stateDir}, NetNSDirs: []string{}})
}

// printLeftovers compares with an earlier audit of this program's host.
func printLeftovers(ctx context.Context, out io.Writer, before []string) error {
	after, err := audit(ctx)
	if err != nil {
		return err
	}
	cgroups, err := findCgroup()
	if err != nil {
		return err
	}
	left := cnitest.Diff(before, after)
	for _, path := range cgroups {
		left += "+ cgroup " + path + "\n"
	}
	if left != "" {
		fmt.Fprintf(out, "left:\n%s", left)
		return errors.New("the functions did not leave the host as it was")
	}
	fmt.Fprintln(out, "left of the functions: nothing")
	return nil
}
