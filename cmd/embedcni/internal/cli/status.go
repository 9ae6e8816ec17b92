package cli

import (
	"context"

	"github.com/spf13/cobra"
)

func newStatusCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "status [NETWORK [NETNS]]",
		GroupID: groupCNI,
		Short:   "Asks the plugins of a network, or of all, whether containers can be attached.",
		Long: `Status runs CNI's STATUS of the networks in the configuration directory whose version has
it, which is 1.1.0 and later. It prints nothing if all is well. The exit code is 3 if a
plugin refuses. Ready looks further: plugins that are missing, directories, privileges.

The namespace is ignored; it may stand there because cnitool wants one.`,
		Example: `  embedcni status pods`,
		Args:    cobra.RangeArgs(0, 2), ValidArgsFunction: a.completeNetwork,
		RunE: func(cmd *cobra.Command, args []string) error { return a.status(cmd.Context(), args) },
	}
}

func (a *app) status(ctx context.Context, args []string) error {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	rt, err := a.openNetworks()
	if err != nil {
		return err
	}
	var configs [][]byte
	if len(args) > 0 {
		config, err := a.configOf(rt, args[0])
		if err != nil {
			return err
		}
		configs = append(configs, []byte(config.Source))
	}
	p := a.begin("status", 0)
	err = rt.StatusOf(ctx, configs...)
	p.end()
	return answer(err)
}
