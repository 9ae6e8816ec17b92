package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"
)

// patience limits the wait for a program to answer after its start.
const patience = 10 * time.Second

// awaitHealth waits until an allocation answers over all its ports of the host.
func (c *client) awaitHealth(ctx context.Context, a allocation) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := c.health(ctx, a)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

// reportHealth asks the allocations that run, and prints what has changed.
func (c *client) reportHealth(ctx context.Context, wanted []allocation) {
	for _, a := range wanted {
		if !c.known[a.ID] || ctx.Err() != nil {
			continue
		}
		err := c.health(ctx, a)
		switch {
		case ctx.Err() != nil:
			return // the answer was not waited for
		case err != nil && !c.ill[a.ID]:
			c.out.printf("%s: does not answer: %v", a.ID, err)
		case err == nil && c.ill[a.ID]:
			c.out.printf("%s: answers again", a.ID)
		}
		c.ill[a.ID] = err != nil
	}
}

// health asks an allocation over each of its ports of the host.
func (c *client) health(ctx context.Context, a allocation) error {
	result, err := c.rt.Lookup(a.ID)
	if err != nil {
		return err
	}
	for _, p := range result.Requested {
		if err := ask(ctx, int(p.HostPort), a.ID); err != nil {
			return fmt.Errorf("port %s: %w", p.Label, err)
		}
	}
	return nil
}

// ask returns an error unless the allocation answers at the host's port, and no other.
func ask(ctx context.Context, port int, id string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/", port), nil)
	if err != nil {
		return err
	}
	// A connection of its own, because one that is open may outlive the rules.
	own := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := own.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close() // was only read
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<10))
	if err != nil {
		return err
	}
	if string(body) != id {
		return fmt.Errorf("%q answers", body)
	}
	return nil
}
