package leftovers

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/embedcni/cni/internal/builtin"
	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/netfilter"
	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

// The reference plugins name the chains of an attachment, for masquerading and for
// host ports, after the network and the container. In nftables they name host ports
// after the container alone. Two attachments of a container, for example to the IPv4
// and the IPv6 list of a network, share these chains. They are siblings. The removal
// of one attachment must keep the rules of its siblings.

// Wanted has the rules that one plugin makes for an attachment.
type Wanted struct {
	Type  string
	Rules []netfilter.Rule
}

// Wants returns the attachment's rules that name ports, or that are in chains which other
// attachments of the container may share. With an error, some of them are unknown.
func (a *Attachment) Wants() (all []Wanted, err error) {
	result := chain.Decode(a.Result)
	var errs []error
	for i, p := range a.List.Plugins {
		w := Wanted{Type: p.Network.Type}
		if a.Ran.IsCallers(w.Type) {
			continue // its rules are unknown
		}
		config, err := (&chain.Chain{List: a.List}).Request(i, &a.Params)
		if err == nil {
			w.Rules, err = builtin.Wants(&plugin.Request{
				ContainerID: a.Params.ContainerID, IfName: a.Params.IfName, NetNS: a.Params.NetNS, Name: a.List.Name,
				Type: w.Type, CNIVersion: a.List.CNIVersion, Config: config, PrevResult: result,
			})
		}
		if errs = append(errs, err); err == nil && len(w.Rules) > 0 {
			all = append(all, w)
		}
	}
	return all, joined.Errors(errs...)
}

// SharedRules returns the attachment's rules in chains that siblings may share. With
// an error, some of them are unknown.
func (a *Attachment) SharedRules() (all []netfilter.Rule, err error) {
	wants, err := a.Wants()
	for _, w := range wants {
		all = append(all, w.Rules...)
	}
	return all, err
}

// Siblings describes the other attachments of a container for the removal of one
// from the network. The error names those whose rules are unknown; rules that they
// may share then stay.
func Siblings(network string, others []*Attachment) (s netfilter.Siblings, err error) {
	var errs []error
	for _, b := range others {
		s.Owners = append(s.Owners, b.Owner())
		s.Addresses = append(s.Addresses, Addresses(b.Result)...)
		if b.List.Name != network {
			continue
		}
		rules, err := b.SharedRules()
		s.Rules = append(s.Rules, rules...)
		if err != nil {
			s.Unknown = true
			errs = append(errs, fmt.Errorf("interface %s: %w", b.Params.IfName, err))
		}
	}
	return s, joined.Errors(errs...)
}

// Lost reports whether a removal may also delete the rules that a sibling wants, so that
// those that are missing must be made again.
type Lost func(sibling *Attachment, w Wanted) bool

// LostWith returns which rules of siblings a DEL deletes that a plugin of a type has run
// for the attachment; nil: none. Built-in plugins leave a sibling's rules, and the rules
// of the caller's plugins are unknown.
func (a *Attachment) LostWith(typ string) Lost {
	deleted := conflist.Known(typ).Rules
	if deleted != conflist.HostPorts && deleted != conflist.Masquerade || a.Ran.IsBuiltIn(typ) || a.Ran.IsCallers(typ) {
		return nil
	}
	return func(sibling *Attachment, w Wanted) bool {
		// In nftables the comment of host ports is the container's ID on every network.
		return conflist.Known(w.Type).Rules == deleted && (sibling.List.Name == a.List.Name || deleted == conflist.HostPorts)
	}
}

// Inherited selects the siblings' host ports. A sibling may forward the same port of the
// host as the removed attachment.
func Inherited(_ *Attachment, w Wanted) bool {
	return conflist.Known(w.Type).Rules == conflist.HostPorts
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
func MakeAgain(ctx context.Context, host *netns.Handle, siblings []*Attachment, lost Lost, log *slog.Logger) error {
	var errs []error
	for _, s := range siblings {
		wants, err := s.Wants()
		own := []error{err}
		for _, w := range wants {
			if lost(s, w) {
				own = append(own, s.makeAgain(ctx, host, w, log))
			}
		}
		for _, err := range own {
			if err != nil {
				errs = append(errs, &SiblingError{s.List.Name, s.Params.IfName, err})
			}
		}
	}
	return joined.Errors(errs...)
}

func (a *Attachment) makeAgain(ctx context.Context, host *netns.Handle, w Wanted, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), Limit)
	defer cancel()
	given := a.Given()
	fw := given.Firewalls(host)
	missing, err := fw.Missing(ctx, w.Rules...)
	if err != nil || len(missing) == 0 {
		return err
	}
	log.Info("making rules again that the removal of another attachment has deleted",
		"network", a.List.Name, "interface", a.Params.IfName, "plugin", w.Type)
	if !a.Ran.IsBuiltIn(w.Type) {
		if err := contract.NoteRestored(given.Record, w.Type); err != nil {
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
	return joined.Errors(errs...)
}
