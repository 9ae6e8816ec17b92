package sweep

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/footprint"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/netns"
)

// Sibling is an attachment of the container that stays.
type Sibling struct {
	*footprint.Attachment
	Given caller.Given // to make its rules with
}

// SiblingError means that a removal also deleted rules of another attachment of the
// container, and that making them again failed.
type SiblingError struct {
	Network, IfName string
	Err             error
}

func (e *SiblingError) Error() string {
	return fmt.Sprintf("rules of interface %s on network %q, which stays, went too and could not be made again: %v", e.IfName, e.Network, e.Err)
}

// Unwrap returns the cause.
func (e *SiblingError) Unwrap() error { return e.Err }

// MakeAgain makes those rules of the siblings for which lost returns true, unless they
// exist. It needs only their records, so a removal that is repeated after a crash makes
// them too.
func MakeAgain(ctx context.Context, host *netns.Handle, siblings []Sibling, lost footprint.Lost, log *slog.Logger) error {
	var errs []error
	for _, s := range siblings {
		wants, err := s.Wants()
		errs = append(errs, s.failed(err))
		for _, w := range wants {
			if w.Reference {
				w.Backend = referenceBackend()
			}
			if lost(s.Attachment, w) {
				errs = append(errs, s.failed(s.makeAgain(ctx, host, w, log)))
			}
		}
	}
	return errors.Join(errs...)
}

func (s Sibling) failed(err error) error {
	if err == nil {
		return nil
	}
	return &SiblingError{s.List.Name, s.IfName, err}
}

func (s Sibling) makeAgain(ctx context.Context, host *netns.Handle, w footprint.Wanted, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), Limit)
	defer cancel()
	given := s.Given
	fw := given.Firewalls(host)
	given.Filters.AnyForm = true
	unsure := given.Firewalls(host)
	for i := range w.Rules.HostPorts {
		if w.Backend != fwrules.IPTables {
			h := &w.Rules.HostPorts[i]
			h.ConditionsV4, h.ConditionsV6 = nil, nil // in nftables, all containers share the conditions
			h.MasqAll = h.MasqAll && s.IsBuiltIn(w.Type)
		}
	}
	if fw.Check(ctx, w.Backend, w.Rules) == nil || w.Unsure && unsure.Check(ctx, fwrules.Native, w.Rules) == nil {
		return nil
	}
	log.Info("making rules again that the removal of another attachment has deleted",
		"network", s.List.Name, "interface", s.IfName, "plugin", w.Type)
	return fw.Add(ctx, w.Backend, w.Rules)
}

// referenceBackend returns the backend that the reference plugins use if the
// configuration names none.
func referenceBackend() fwrules.Backend {
	if netfilter.Detect() == fwrules.DetectedIPTables {
		return fwrules.IPTables
	}
	return fwrules.NFTables
}
