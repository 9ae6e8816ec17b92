package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/embedcni/cni"
)

func newCheckCommand(a *app) *cobra.Command {
	var f toolFlags
	cmd := &cobra.Command{
		Use:     "check NETWORK NETNS",
		GroupID: groupCNI,
		Short:   "Asks the plugins of a network whether a container is attached as it was.",
		Long: `Check runs CNI's CHECK of a network for a container, with the configuration and the
parameters of its ADD, which are on record. It prints nothing if all is well. The exit code
is 3 if a plugin says that something is wrong. Health also compares with the kernel, and
lists all that differs.

` + toolEnvironment,
		Example: `  embedcni check pods /run/netns/web`,
		Args:    toolArgs, ValidArgsFunction: a.completeNetwork,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := f.call(args[1])
			if err != nil {
				return err
			}
			return a.check(cmd.Context(), args[0], c)
		},
	}
	a.addToolFlags(cmd, &f)
	return cmd
}

func (a *app) check(ctx context.Context, network string, c call) error {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	rt, err := a.openNetworks()
	if err != nil {
		return err
	}
	recorded, err := a.recorded(rt, []string{c.id})
	if err != nil {
		return err
	}
	if _, ok := recorded[c.id]; !ok {
		return notOnRecord(c.id)
	}
	p := a.begin("check", 0)
	err = rt.Check(ctx, c.id, c.netns, c.network(network))
	p.end()
	if errors.Is(err, cni.ErrNoCheck) {
		return advise(err, "'embedcni health %s' compares the container with the kernel.", c.id)
	}
	if said := new(exitError); errors.As(answer(err), &said) {
		return advise(said, "'embedcni repair %s' says what can be repaired.", c.id)
	}
	return err
}
