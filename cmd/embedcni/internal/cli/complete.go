package cli

import (
	"errors"
	"slices"

	"github.com/spf13/cobra"
)

// completeIDs completes the IDs of containers on record: of every owner for a command that
// looks, of the owner for one that changes.
func (a *app) completeIDs(everyOwner bool) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) (ids []cobra.Completion, _ cobra.ShellCompDirective) {
		rt, err := a.open()
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		all, err := rt.Attachments()
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		for _, at := range all {
			if at.ContainerID != "" && (everyOwner || at.Owner == a.flags.owner) && !slices.Contains(args, at.ContainerID) {
				ids = append(ids, at.ContainerID)
			}
		}
		return unique(ids), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeFlags completes the values of global flags. What is no directory is no file.
func (a *app) completeFlags(root *cobra.Command) error {
	fixed := func(values ...cobra.Completion) cobra.CompletionFunc {
		return cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)
	}
	owners := func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		rt, err := a.open()
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		all, err := rt.Attachments()
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return ownersOf(all), cobra.ShellCompDirectiveNoFileComp
	}
	return errors.Join(
		root.RegisterFlagCompletionFunc("color", fixed(colorAuto, colorAlways, colorNever)),
		root.RegisterFlagCompletionFunc("builtin", fixed(builtinFallback, builtinAll)),
		root.RegisterFlagCompletionFunc("timeout", fixed("10s", "1m")),
		root.RegisterFlagCompletionFunc("owner", owners),
		root.MarkPersistentFlagDirname("state-dir"), root.MarkPersistentFlagDirname("record-dir"), root.MarkPersistentFlagDirname("conf-dir"),
	)
}

// completeNetwork completes the name of a configured network as the first argument, and a
// path as the second.
func (a *app) completeNetwork(_ *cobra.Command, args []string, _ string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	rt, err := a.openLoaded()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	for _, n := range rt.GetConfig().Networks {
		names = append(names, n.Config.Name)
	}
	return unique(names), cobra.ShellCompDirectiveNoFileComp
}
