package cli

import (
	"context"

	"github.com/spf13/cobra"
)

func newDelCommand(a *app) *cobra.Command {
	var f toolFlags
	cmd := &cobra.Command{
		Use:     "del NETWORK NETNS",
		GroupID: groupCNI,
		Short:   "Detaches a container from a network, and verifies that nothing remains.",
		Long: `Del runs CNI's DEL of a network for a container. It goes by the record, so that neither
the configuration nor the namespace need exist any more. For a container that is not on
record, as one of cnitool's, it takes libcni's cache and the configuration directory. It is
no error if the container was never attached.

` + toolEnvironment,
		Example: `  embedcni del pods /run/netns/web`,
		Args:    toolArgs, ValidArgsFunction: a.completeNetwork,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := f.call(args[1])
			if err != nil {
				return err
			}
			return a.del(cmd.Context(), args[0], c)
		},
	}
	a.addToolFlags(cmd, &f)
	return cmd
}

func (a *app) del(ctx context.Context, network string, c call) error {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	rt, err := a.open()
	if err != nil {
		return err
	}
	found, err := a.changeableCall(rt, c, network)
	if err != nil {
		return err
	}
	if !found {
		if rt, err = a.openNetworks(); err != nil {
			return err
		}
		if _, err := a.configOf(rt, network); err != nil {
			return err
		}
	}
	p := a.begin("del", 0)
	defer p.end()
	return withAdvice(rt.Remove(ctx, c.id, c.netns, c.network(network)))
}
