package netfilter

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// check is Check, by one backend.
func (fw *Firewalls) check(ctx context.Context, b Backend, r Rules) error {
	w, err := newWriter(b)
	if err != nil {
		return err
	}
	return fw.call(ctx, w, func(w writer) error { return w.check(ctx, r) })
}

// checkAny returns an error unless the rules are there in one of the forms.
// That of executables goes first: it is theirs more often than not.
func (fw *Firewalls) checkAny(ctx context.Context, r Rules) error {
	var errs []error
	for _, b := range []Backend{IPTables, NFTables, Native} {
		wanted := r
		if b == NFTables {
			// As the plugin portmap does where the backend is named: the
			// reference plugin makes no such rule.
			wanted.HostPorts = slices.Clone(r.HostPorts)
			for i := range wanted.HostPorts {
				wanted.HostPorts[i].MasqAll = false
			}
		}
		err := fw.check(ctx, b, wanted)
		if err == nil || ctx.Err() != nil {
			return err
		}
		errs = append(errs, err)
	}
	return fmt.Errorf("the rules are there in no form: %w", errors.Join(errs...))
}
