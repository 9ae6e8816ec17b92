package netfilter

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/embedcni/cni/internal/batch"
	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/netfilter/iptform"
	"github.com/embedcni/cni/internal/netfilter/native"
	"github.com/embedcni/cni/internal/netfilter/nftform"
	"github.com/embedcni/cni/internal/nft"
	"github.com/embedcni/cni/netns"
)

// Check returns an error unless all of the rules exist. It is an [fwrules.ErrMissing]
// that names the first missing rule, or that of a packet filter that cannot be read.
func (fw *Firewalls) Check(ctx context.Context, b fwrules.Backend, r fwrules.Rules) error {
	all, err := fw.Missing(ctx, b, r)
	if err == nil && len(all) > 0 {
		err = all[0].Err
	}
	return err
}

// Missing returns the parts of the rules that do not exist, in the order of the rules.
// A part is missing too if a rule is that all containers share, and without which the
// part has no effect. An error means that the rules cannot be read, or that the backend
// refuses them.
//
// With [Options.AnyForm] and the backend Native, which then stands for an unknown one,
// nothing is missing if all rules are there in one form. Otherwise the result is that
// of the form with most of the rules. If there are none in any form, it is that of the
// form that a reference plugin would make on this host now: each form has the same
// effect, and a DEL with AnyForm removes all.
func (fw *Firewalls) Missing(ctx context.Context, b fwrules.Backend, r fwrules.Rules) ([]fwrules.Missing, error) {
	return fw.missing(ctx, b, r, fw.missingIn)
}

// finder is a Missing of one form, on the kernel or in a dump of it.
type finder func(ctx context.Context, b fwrules.Backend, r fwrules.Rules) ([]fwrules.Missing, error)

func (fw *Firewalls) missing(ctx context.Context, b fwrules.Backend, r fwrules.Rules, in finder) ([]fwrules.Missing, error) {
	if b == fwrules.Native && fw.AnyForm {
		return missingInAny(ctx, r, in)
	}
	return in(ctx, b, r)
}

func (fw *Firewalls) missingIn(ctx context.Context, b fwrules.Backend, r fwrules.Rules) ([]fwrules.Missing, error) {
	form, err := fw.form(b)
	if err != nil {
		return nil, err
	}
	return form.Missing(ctx, r)
}

// missingInAny asks all forms. That of executables goes first: they made most of the
// rules whose form is not known.
func missingInAny(ctx context.Context, r fwrules.Rules, in finder) ([]fwrules.Missing, error) {
	total := len(r.Parts())
	var errs []error
	var unreadable error
	results := make(map[fwrules.Backend][]fwrules.Missing)
	for _, b := range forms() {
		if b == fwrules.Native && onlyAccepts(r) && Detect() == fwrules.DetectedIPTables {
			continue // it has no such rules, and the maker has made them
		}
		all, err := in(ctx, b, inForm(b, r))
		if err == nil && len(all) == 0 || ctx.Err() != nil {
			return nil, err
		}
		if err == nil {
			// Without the mark: rules that cannot be read in another form may exist.
			results[b], err = all, errors.Unwrap(all[0].Err)
		} else if !refused(err) && unreadable == nil {
			unreadable = err
		}
		errs = append(errs, err)
	}
	err := fmt.Errorf("the rules are there in no form: %w", errors.Join(errs...))
	best, ok := bestForm(results, total)
	if unreadable != nil || !ok {
		return nil, err
	}
	all := results[best]
	for i := range all {
		all[i].Err = fwrules.AsMissing(err)
	}
	return all, nil
}

// forms are the backends in the order in which rules of an unknown one are looked for.
func forms() []fwrules.Backend {
	return []fwrules.Backend{fwrules.IPTables, fwrules.NFTables, fwrules.Native}
}

// inForm returns the rules that a reference plugin makes with a backend.
func inForm(b fwrules.Backend, r fwrules.Rules) fwrules.Rules {
	if b == fwrules.NFTables {
		// As the plugin portmap does where the backend is named: the reference
		// plugin makes no such rule.
		r.HostPorts = slices.Clone(r.HostPorts)
		for i := range r.HostPorts {
			r.HostPorts[i].MasqAll = false
		}
	}
	return r
}

// onlyAccepts reports whether all of the rules let the host forward packets.
func onlyAccepts(r fwrules.Rules) bool {
	return len(r.Masquerade) == 0 && len(r.HostPorts) == 0 &&
		!slices.ContainsFunc(r.Forward, func(f fwrules.Forward) bool { return f.Ingress != "" && f.Ingress != "open" })
}

// refused reports whether a form has no rules of the kind, or cannot be on this host.
// Another error means that the rules could not be read.
func refused(err error) bool {
	return errors.Is(err, fwrules.ErrOnlyIPTables) || errors.Is(err, iptables.ErrNotFound) || errors.Is(err, nft.ErrNotSupported)
}

// bestForm returns the form in which most rules are there; if none is in any, that of
// the reference plugins on this host.
func bestForm(results map[fwrules.Backend][]fwrules.Missing, total int) (best fwrules.Backend, ok bool) {
	order := []fwrules.Backend{fwrules.NFTables, fwrules.IPTables, fwrules.Native}
	if Detect() == fwrules.DetectedIPTables {
		order = forms()
	}
	fewest := total + 1
	for _, b := range order {
		if all, readable := results[b]; readable && len(all) < fewest {
			best, fewest, ok = b, len(all), true
		}
	}
	return best, ok
}

// Restore adds those of the rules that do not exist, when Batch is flushed if there is
// one. It replaces and doubles nothing, and leaves the rules of others where they are. It
// can be repeated, and is for parts that Missing has returned. If another rule is in
// the place of one, the error is a [fwrules.ErrInPlace] or [fwrules.ErrHostPortTaken].
//
// Batches of several attachments restore their rules together, see
// [batch.FlushTogether]. If that fails, some may have been added.
func (fw *Firewalls) Restore(ctx context.Context, b fwrules.Backend, r fwrules.Rules) error {
	if _, err := fw.form(b); err != nil {
		return err
	}
	return batch.Join(ctx, fw.Batch, restoration{backend: b, ns: fw.namespace()}, restoring{fw, r}, func(ctx context.Context, all []restoring) error {
		all = together(all)
		if err := restore(ctx, b, all); err != nil {
			return err
		}
		var ports []fwrules.HostPorts
		for _, one := range all {
			ports = append(ports, one.rules.HostPorts...)
		}
		return fw.forgetFlows(ctx, ports, true)
	})
}

// RestoreSpoofCheck adds those of the rules that do not exist, when Batch is flushed if
// there is one. Batches of several attachments do so together, as those of Restore.
func (fw *Firewalls) RestoreSpoofCheck(ctx context.Context, s fwrules.SpoofCheck) error {
	one := nftform.SpoofRestoring{SpoofCheck: fw.SpoofCheck(s.ContainerID, s.IfName), Port: s.Port, MAC: s.MAC}
	return batch.Join(ctx, fw.Batch, restoration{spoofs: true, ns: fw.namespace()}, one, nftform.RestoreSpoofChecks)
}

// restoration identifies the rules that are restored in one transaction.
type restoration struct {
	backend fwrules.Backend
	spoofs  bool // those against other MAC addresses, without a backend
	ns      netns.ID
}

// Early implements [batch.Early]: the rules of iptables go first, because a change of
// others would have them listed again; see [Kept].
func (r restoration) Early() bool { return r.backend == fwrules.IPTables }

// namespace returns the identity of the namespace, or zero for that of the thread.
func (fw *Firewalls) namespace() (id netns.ID) {
	if fw.sockets.NS != nil {
		id = fw.sockets.NS.ID()
	}
	return id
}

// restoring is the rules of an attachment that are to be restored.
type restoring struct {
	fw    *Firewalls
	rules fwrules.Rules
}

// together returns the rules with the ports of each attachment in one place, so that
// those that it has of the packet filter are looked at once. The ports that Missing has
// returned with each of many parts are there once.
func together(all []restoring) (merged []restoring) {
	at := make(map[fwrules.Owner]int)
	have := make(map[*fwrules.HostPorts]bool)
	for _, one := range all {
		ports := one.rules.HostPorts
		if len(ports) == 0 || len(one.rules.Masquerade)+len(one.rules.Forward) > 0 {
			merged = append(merged, one)
			continue
		}
		if have[&ports[0]] {
			continue
		}
		have[&ports[0]] = true
		if i, ok := at[ports[0].Owner]; ok {
			merged[i].rules.HostPorts = append(merged[i].rules.HostPorts, ports...)
			continue
		}
		at[ports[0].Owner] = len(merged)
		merged = append(merged, restoring{one.fw, fwrules.Rules{HostPorts: slices.Clone(ports)}})
	}
	return merged
}

// restore adds the missing rules of attachments in one form.
func restore(ctx context.Context, b fwrules.Backend, all []restoring) error {
	switch b {
	case fwrules.IPTables:
		var parts []iptform.Restoring
		for _, one := range all {
			parts = append(parts, iptform.Restoring{Form: one.fw.iptables, Rules: one.rules})
		}
		return iptform.Restore(ctx, parts)
	case fwrules.NFTables:
		var parts []fwrules.Rules
		for _, one := range all {
			parts = append(parts, one.rules)
		}
		return all[0].fw.nftform.Restore(ctx, parts)
	case fwrules.Native:
		var parts []native.Restoring
		for _, one := range all {
			parts = append(parts, native.Restoring{Siblings: one.fw.siblings, Rules: one.rules})
		}
		return all[0].fw.native.Restore(ctx, parts)
	}
	return b.Unknown()
}
