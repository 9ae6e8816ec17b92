package firewall

import (
	"context"

	"github.com/embedcni/cni/plugin"
)

// Status refuses a configuration that every Add refuses.
func (Plugin) Status(ctx context.Context, r *plugin.Request) error {
	_, _, err := parse(ctx, r)
	return err
}
