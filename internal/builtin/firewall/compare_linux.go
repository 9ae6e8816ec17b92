package firewall

import (
	"context"
	"errors"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/firewalld"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/plugin"
)

// Check returns an error unless every rule exists, or every address is in its zone.
func (p Plugin) Check(ctx context.Context, r *plugin.Request) error { return compare.Check(ctx, r, p) }

// Compare compares the rules of the addresses, or the zone that they are in, and the
// ingress policy.
func (Plugin) Compare(ctx context.Context, r *plugin.Request, v *compare.View) ([]compare.Difference, error) {
	w, err := parse(ctx, r)
	if err != nil {
		return nil, err
	}
	if r.PrevResult == nil {
		return nil, plugin.Errorf(types.ErrInvalidNetworkConfig, "plugin firewall: there is no previous result to check against")
	}
	switch w.backend {
	case netfilter.DetectedFirewalld:
		return w.compareZoned(ctx, v)
	case anyBackend:
		return w.compareAny(ctx, v)
	}
	missing, err := v.Rules.Missing(ctx, w.rules()...)
	return w.differences(missing), err
}

// compareZoned compares the zone, and the ingress policy beside it.
func (w work) compareZoned(ctx context.Context, v *compare.View) ([]compare.Difference, error) {
	found, err := w.compareZone(ctx)
	if err != nil {
		return nil, err
	}
	w.backend = netfilter.DetectedFirewalld
	missing, err := v.Rules.Missing(ctx, w.rules()...)
	return append(found, w.differences(missing)...), err
}

// compareAny compares the rules, and the zone if the addresses have none:
// the ADD may have found a firewalld. If nothing is left of either, it belongs where an
// executable's ADD would put it now.
func (w work) compareAny(ctx context.Context, v *compare.View) ([]compare.Difference, error) {
	missing, err := v.Rules.Missing(ctx, w.rules()...)
	if err != nil || len(missing) == 0 {
		return nil, err
	}
	inNoForm := missing[0].Err
	rules := w.differences(missing)
	lost := slices.DeleteFunc(slices.Clone(missing), func(m netfilter.Missing) bool { return m.Kind != netfilter.Accept })
	if len(lost) < len(w.addrs) {
		return rules, nil
	}
	zoned, err := w.compareZoned(ctx, v)
	switch {
	case errors.Is(err, firewalld.ErrNotRunning):
		return rules, nil
	case err != nil:
		return nil, errors.Join(inNoForm, err)
	case len(zoned) > 0:
		zoned[0].Err = errors.Join(inNoForm, zoned[0].Err)
	}
	return zoned, nil
}

// differences describes missing rules.
func (w work) differences(missing []netfilter.Missing) (found []compare.Difference) {
	for _, m := range missing {
		d := compare.Difference{
			Kind: compare.Rule, Object: m.Object(), Wanted: "accepted", Found: m.Found, Err: m.Err,
		}
		if m.Kind == netfilter.Ingress {
			d.Wanted = m.Policy
		}
		if d.Why = compare.Why(m); d.Why == "" {
			d.Fix = func(ctx context.Context) error { return compare.Restore(ctx, w.request, m) }
		}
		found = append(found, d)
	}
	return found
}
