package firewall

import (
	"context"
	"errors"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/kernel/firewalld"
	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/netfilter"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/plugin"
)

// Check returns an error unless every rule exists, or every address is in its zone.
func (p Plugin) Check(ctx context.Context, r *plugin.Request) error { return contract.Check(ctx, r, p) }

// Compare compares the rules of the addresses, or the zone that they are in, and the
// ingress policy.
func (Plugin) Compare(ctx context.Context, r *plugin.Request, v *contract.View) ([]contract.Difference, error) {
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
	return contract.MissingRules(ctx, r, v, w.rules(), nil)
}

// compareZoned compares the zone, and the ingress policy beside it.
func (w work) compareZoned(ctx context.Context, v *contract.View) ([]contract.Difference, error) {
	found, err := w.compareZone(ctx)
	if err != nil {
		return nil, err
	}
	w.backend = netfilter.DetectedFirewalld
	rules, err := contract.MissingRules(ctx, w.request, v, w.rules(), nil)
	return append(found, rules...), err
}

// compareAny compares the rules, and the zone if the addresses have none:
// the ADD may have found a firewalld. If nothing is left of either, it belongs where an
// executable's ADD would put it now.
func (w work) compareAny(ctx context.Context, v *contract.View) ([]contract.Difference, error) {
	rules, err := contract.MissingRules(ctx, w.request, v, w.rules(), nil)
	if err != nil || len(rules) == 0 {
		return nil, err
	}
	inNoForm := rules[0].Err
	lost := slices.DeleteFunc(slices.Clone(rules), func(d contract.Difference) bool { return d.Wanted != netfilter.Accepted })
	if len(lost) < len(w.addrs) {
		return rules, nil
	}
	zoned, err := w.compareZoned(ctx, v)
	switch {
	case errors.Is(err, firewalld.ErrNotRunning):
		return rules, nil
	case err != nil:
		return nil, joined.Errors(inNoForm, err)
	case len(zoned) > 0:
		zoned[0].Err = joined.Errors(inNoForm, zoned[0].Err)
	}
	return zoned, nil
}
