package cli

import (
	"errors"

	"github.com/spf13/cobra"
)

// completeValues completes the flags that have few values, or that name directories.
func completeValues(root *cobra.Command) error {
	graph, _, err := root.Find([]string{"graph"})
	audit, _, err2 := root.Find([]string{"audit"})
	bridge, _, err3 := root.Find([]string{"conf", "new", "bridge"})
	if err := errors.Join(err, err2, err3); err != nil {
		return err
	}
	fixed := func(cmd *cobra.Command, flag string, values ...cobra.Completion) error {
		return cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
	return errors.Join(
		fixed(graph, "format", "svg", "dot"), graph.MarkFlagFilename("output", "svg", "dot", "gv"),
		fixed(bridge, "isolate", "same-bridge", "isolated"), fixed(bridge, "cni-version", "0.4.0", "1.0.0", "1.1.0"),
		bridge.MarkFlagDirname("data-dir"),
		audit.MarkFlagDirname("netns-dir"), audit.MarkFlagDirname("proc"), audit.MarkFlagDirname("also-state-dir"),
	)
}
