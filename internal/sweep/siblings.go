package sweep

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/footprint"
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
	fw := s.Given.Firewalls(host)
	missing, err := fw.Missing(ctx, w.Rules...)
	if err != nil || len(missing) == 0 {
		return err
	}
	log.Info("making rules again that the removal of another attachment has deleted",
		"network", s.List.Name, "interface", s.IfName, "plugin", w.Type)
	if !s.IsBuiltIn(w.Type) {
		if err := caller.NoteRestored(s.Given.Record, w.Type); err != nil {
			return err
		}
	}
	var errs []error
	for _, m := range missing {
		if m.Why != "" {
			errs = append(errs, fmt.Errorf("%s: %s", m.Object(), m.Why))
			continue
		}
		errs = append(errs, fw.Restore(ctx, m.Rule))
	}
	return errors.Join(errs...)
}
