package cni

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/sweep"
)

// reclaim removes what is left of containers that the owner's ledger knows and
// no record does.
func (s *snapshot) reclaim(ctx context.Context, o GCOptions, report *Report) error {
	known, err := s.ledger().Read()
	if err != nil {
		return err
	}
	if len(known) == 0 {
		return nil
	}
	valid, err := s.validAttachments()
	if err != nil {
		return fmt.Errorf("what is left of containers that are on no record is not looked for: %w", err)
	}
	var staying []record.Key
	gone := map[string][]record.Key{} // by network: nothing was left when they went
	var errs []error
	for _, key := range sorted(known) {
		a := types.GCAttachment{ContainerID: key.ContainerID, IfName: key.IfName}
		switch {
		case slices.Contains(valid[key.Network], a) || slices.Contains(o.Keep, key.ContainerID):
			staying = append(staying, key)
		case known[key]:
			gone[key.Network] = append(gone[key.Network], key)
		default:
			errs = append(errs, s.reclaimLost(ctx, key, o.DryRun, report))
		}
	}
	for network, keys := range gone {
		errs = append(errs, s.reclaimAddresses(ctx, network, keys, o.DryRun, report))
	}
	slices.Sort(report.Reclaimed)
	if err := join(errs...); err != nil || o.DryRun {
		return err
	}
	return s.ledger().Settle(staying)
}

func sorted(known map[record.Key]bool) []record.Key {
	keys := make([]record.Key, 0, len(known))
	for key := range known {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b record.Key) int {
		return slices.Compare([]string{a.ContainerID, a.Network, a.IfName}, []string{b.ContainerID, b.Network, b.IfName})
	})
	return keys
}

// reclaimLost removes all that can be left of an attachment whose record was
// lost.
func (s *snapshot) reclaimLost(ctx context.Context, key record.Key, dry bool, report *Report) error {
	found, err := s.cleanUp(ctx, CleanUpTarget{
		ContainerID: key.ContainerID, Network: key.Network, IfName: key.IfName, DryRun: dry,
	})
	for _, line := range found {
		report.Reclaimed = append(report.Reclaimed, fmt.Sprintf("%s %s: %s", key.ContainerID, key.IfName, line))
	}
	if err != nil && !errors.Is(err, ErrNotSupported) {
		return fmt.Errorf("reclaim %s of container %s on network %q: %w", key.IfName, key.ContainerID, key.Network, err)
	}
	return nil
}

// reclaimAddresses releases what host-local holds on a network for attachments
// of which nothing was left once. It does not sync its files.
func (s *snapshot) reclaimAddresses(ctx context.Context, network string, gone []record.Key, dry bool, report *Report) error {
	dirs, err := s.addressDirs(network)
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range dirs {
		stale, err := sweep.Stale(dir, func(id, ifName string) bool {
			return slices.Contains(gone, record.Key{ContainerID: id, Network: network, IfName: ifName})
		})
		errs = append(errs, err)
		report.Reclaimed = append(report.Reclaimed, names(stale)...)
		if !dry {
			errs = append(errs, sweep.Remove(ctx, stale))
		}
	}
	return join(errs...)
}

// addressDirs are where host-local keeps the addresses of a network.
func (s *snapshot) addressDirs(network string) ([]string, error) {
	n, err := s.find(network)
	if err != nil {
		return []string{filepath.Join(hostLocalDir, network)}, nil // not loaded any more
	}
	f := &footprint{}
	f.Network = network
	for i, p := range n.config.Plugins {
		if err := f.plugin(i, p.Bytes); err != nil {
			return nil, fmt.Errorf("network %q: %w", network, err)
		}
	}
	return f.IPAMDirs, nil
}
