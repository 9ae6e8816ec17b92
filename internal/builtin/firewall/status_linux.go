package firewall

import (
	"context"

	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/plugin"
)

// errNotAvailable is "plugin not available", CNI specification 1.1.0, section 5.
const errNotAvailable = 50

// Status refuses a configuration that every Add refuses. If the configuration
// names firewalld, Status fails unless one runs.
func (Plugin) Status(ctx context.Context, r *plugin.Request) error {
	w, err := parse(ctx, r)
	if err != nil || w.named() != fwrules.DetectedFirewalld {
		return err
	}
	running, err := w.given.Bus.Running(ctx, r.Host)
	if err != nil {
		return plugin.Errorf(errNotAvailable, "plugin firewall: %w", err)
	}
	if !running {
		return plugin.Errorf(errNotAvailable, `plugin firewall: "backend" is "firewalld", and no firewalld runs: start it`)
	}
	return nil
}
