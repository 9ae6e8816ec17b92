package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"

	"github.com/embedcni/cni/bench/floor"
)

// bare is the floor: the least that the kernel requires.
type bare struct {
	spec  spec
	hosts perNetwork[*floor.Host]
}

func newFloor(s spec) (attacher, error) {
	if s.Work.filters() {
		script := floor.Script
		if s.Work == workDefault {
			script += floor.ForwardScript
		}
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(script)
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("nft: %w: %s", err, out)
		}
	}
	return &bare{spec: s}, nil
}

func (b *bare) open(n int) (*floor.Host, error) {
	var prefixes []netip.Prefix
	for _, s := range subnets(b.spec.Work, n) {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, err
		}
		prefixes = append(prefixes, p)
	}
	return floor.Open(floor.Options{Network: networkName(n), DataDir: b.spec.dataDir(), Prefixes: prefixes,
		Ptp: b.spec.Work == workPtp, Filter: b.spec.Work.filters(),
		Forward: b.spec.Work == workDefault, Hairpin: b.spec.Work == workDefault})
}

func (b *bare) add(_ context.Context, c container) error {
	if b.spec.Work == workLoopback {
		return floor.Loopback(c.Path, true)
	}
	h, err := b.hosts.get(c.Network, b.open)
	if err != nil {
		return err
	}
	return h.Add(c.ID, c.Path, c.Port)
}

func (b *bare) del(_ context.Context, c container) error {
	if b.spec.Work == workLoopback {
		return floor.Loopback(c.Path, false)
	}
	h, err := b.hosts.get(c.Network, b.open)
	if err != nil {
		return err
	}
	return h.Del(c.ID)
}

func (b *bare) close() error {
	var errs []error
	for _, h := range b.hosts.all {
		errs = append(errs, h.Close())
	}
	return errors.Join(errs...)
}
