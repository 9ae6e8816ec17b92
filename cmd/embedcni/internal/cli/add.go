package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/embedcni/cni"
)

func newAddCommand(a *app) *cobra.Command {
	var f toolFlags
	var publish []string
	var newNetNS bool
	cmd := &cobra.Command{
		Use:     "add NETWORK NETNS",
		GroupID: groupCNI,
		Short:   "Attaches a container to a network, and prints CNI's result.",
		Long: `Add runs CNI's ADD of a network in the configuration directory for the network namespace
at a path, and prints the result as the specification has it, in the configuration's
version. The attachment is on record, so that list, health and repair know it. If anything
fails, everything is undone.

` + toolEnvironment,
		Example: `  ip netns add web && embedcni add pods /run/netns/web
  embedcni add pods /run/netns/web --new-netns --id web --publish 8080:80`,
		Args: toolArgs, ValidArgsFunction: a.completeNetwork,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := f.call(args[1])
			if err != nil {
				return err
			}
			var opts []cni.NamespaceOpts
			for _, text := range publish {
				ports, err := cni.ParsePorts(text)
				if err != nil {
					return usageError("--publish %w", err)
				}
				opts = append(opts, cni.WithPorts(ports...))
			}
			if newNetNS {
				opts = append(opts, cni.WithNewNetNS())
			}
			return a.add(cmd.Context(), args[0], c, opts)
		},
	}
	a.addToolFlags(cmd, &f)
	cmd.Flags().StringArrayVarP(&publish, "publish", "p", nil, "forward `ports` of the host, as 8080:80, 127.0.0.1:5300:53/udp, or 80 for a port that is chosen")
	cmd.Flags().BoolVar(&newNetNS, "new-netns", false, "make the network namespace; del and remove delete it")
	return cmd
}

func (a *app) add(ctx context.Context, network string, c call, opts []cni.NamespaceOpts) error {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	rt, err := a.openNetworks()
	if err != nil {
		return err
	}
	config, err := a.configOf(rt, network)
	if err != nil {
		return err
	}
	p := a.begin("add", 0)
	result, err := rt.Setup(ctx, c.id, c.netns, append(opts, c.network(network))...)
	p.end()
	switch {
	case errors.Is(err, cni.ErrAlreadyAttached):
		return advise(err, "'embedcni show %s' shows it; another interface takes another --ifname.", c.id)
	case errors.Is(err, cni.ErrInvalidNetNS) && errors.Is(err, fs.ErrNotExist):
		return advise(err, "Make it with 'ip netns add', or have it made with --new-netns.")
	case err != nil:
		return err
	}
	for _, raw := range result.Raw() {
		versioned, err := raw.GetAsVersion(config.CNIVersion)
		if err == nil {
			err = versioned.PrintTo(a.Out)
		}
		if err == nil {
			_, err = fmt.Fprintln(a.Out)
		}
		if err != nil {
			return fmt.Errorf("container %s is attached, and its result cannot be printed: %w", c.id, err)
		}
	}
	return nil
}
