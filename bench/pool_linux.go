package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/embedcni/cni"
)

// pool is this library with containers prepared in advance. The pool makes the
// namespaces. The namespaces that the worker makes stay empty.
type pool struct {
	ours
	pools map[int]*cni.Pool // by network
}

// poolSize suffices because containers arrive one by one.
const poolSize = 4

// ready waits until the network's pool is full, so that no preparation runs
// during a measurement.
func (p *pool) ready(ctx context.Context, network int) error {
	rt, err := p.runtimes.get(network, p.open)
	if err != nil {
		return err
	}
	if p.pools[network] == nil {
		made, err := rt.NewPool(cni.PoolOptions{Size: poolSize})
		if err != nil {
			return err
		}
		if p.pools == nil {
			p.pools = make(map[int]*cni.Pool)
		}
		p.pools[network] = made
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for p.pools[network].Ready() < poolSize {
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("a pool that is full: %w", ctx.Err())
		}
	}
	return nil
}

func (p *pool) add(ctx context.Context, c container) error {
	path, _, err := p.pools[c.Network].Setup(ctx, c.ID, p.ports(c)...)
	if err == nil && !strings.HasPrefix(filepath.Base(path), "warm-") {
		err = fmt.Errorf("container %s was not made ahead of time", c.ID)
	}
	return err
}

// drain removes the containers that are ready, which are not leaks.
func (p *pool) drain() error {
	var errs []error
	for network, one := range p.pools {
		errs = append(errs, one.Close())
		delete(p.pools, network)
	}
	return errors.Join(errs...)
}

func (p *pool) close() error { return p.drain() }
