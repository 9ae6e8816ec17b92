package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/embedcni/cni"
)

// Run runs the program with these arguments, and returns its exit code.
func Run(ctx context.Context, args []string, s Streams) int {
	a := &app{Streams: s}
	root := newRootCommand(a)
	root.SetArgs(args)
	root.SetIn(s.In)
	root.SetOut(s.Out)
	root.SetErr(s.Err)
	command, err := root.ExecuteContextC(ctx)
	if err != nil {
		a.complain(command.CommandPath(), err)
	}
	return codeOf(err)
}

// Root returns the command for generators of documents.
func Root(s Streams) *cobra.Command { return newRootCommand(&app{Streams: s}) }

// The groups of commands in the help of the root command.
const (
	groupLook   = "look"
	groupChange = "change"
	groupCNI    = "cni"
	groupConf   = "conf"
)

func newRootCommand(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "embedcni",
		Short: "Attaches containers to networks, and shows, checks and repairs what is attached.",
		Long: `Embedcni works on the containers of a host that a program with the library
github.com/embedcni/cni has attached to CNI networks, or embedcni itself.

Containers on record are shown whoever attached them, if you ask (--all-owners) or name
them. Those of another program are changed only if you name that program with --owner.
Nothing is removed that you have not named. Commands that repair or remove much print
what they would do, and do it with --yes.

Exit codes:

` + indent(exitCodes),
		SilenceUsage: true, SilenceErrors: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return a.flags.validate(cmd) },
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError("%w", err) })
	root.AddGroup(
		&cobra.Group{ID: groupLook, Title: "Look (changes nothing):"},
		&cobra.Group{ID: groupChange, Title: "Change:"},
		&cobra.Group{ID: groupConf, Title: "Configurations:"},
		&cobra.Group{ID: groupCNI, Title: "CNI's operations, as in cnitool:"},
	)
	a.addGlobalFlags(root)
	if err := a.completeFlags(root); err != nil {
		panic(err) // a flag of that name does not exist
	}
	for _, add := range commands() {
		root.AddCommand(add(a))
	}
	if err := completeValues(root); err != nil {
		panic(err) // a flag of that name does not exist
	}
	addCobras(root)
	usageErrors(root)
	return root
}

// addCobras adds the commands that cobra has ready, with texts like the others'.
func addCobras(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "help":
			cmd.Short = "Prints the help of a command."
		case "completion":
			cmd.Short = "Prints the code with which a shell completes commands, flags and containers."
			for _, shell := range cmd.Commands() {
				shell.Short = "Prints the code for " + shell.Name() + "."
			}
		}
	}
}

// commands are the constructors, in no particular order: help sorts them.
func commands() []func(*app) *cobra.Command {
	return []func(*app) *cobra.Command{
		newListCommand, newShowCommand, newHealthCommand, newReadyCommand,
		newRepairCommand, newRemoveCommand, newCleanupCommand, newReleaseCommand,
		newAddCommand, newDelCommand, newCheckCommand, newStatusCommand, newGCCommand, newVersionCommand,
		newGraphCommand, newWatchCommand, newAuditCommand, newConfCommand,
	}
}

func (a *app) addGlobalFlags(root *cobra.Command) {
	f, set := &a.flags, root.PersistentFlags()
	set.StringVar(&f.stateDir, "state-dir", "/var/lib/cni", "the `directory` of the records, that of the program that attached the containers")
	set.StringVar(&f.recordDir, "record-dir", "", "the `directory` of the records, if that program has them elsewhere than in the state directory")
	set.StringVar(&f.confDir, "conf-dir", a.variable("NETCONFPATH", cni.DefaultNetDir), "the `directory` of the network configurations (NETCONFPATH)")
	set.StringVar(&f.pluginDirs, "plugin-dir", a.variable("CNI_PATH", cni.DefaultCNIDir), "the `directories` of the plugins, separated by colons (CNI_PATH)")
	set.StringVar(&f.owner, "owner", "embedcni", "the `program` whose containers the command is about")
	set.StringVar(&f.builtin, "builtin", builtinFallback, "the plugins that run in process: those that are not installed (fallback), all, or these `types`, separated by commas")
	set.StringVar(&f.hostNetNS, "host-netns", "", "the `path` of the host's network namespace, if it is not the caller's")
	set.BoolVar(&f.json, "json", false, "print JSON, for programs")
	set.StringVar(&f.color, "color", colorAuto, "use colors: `when` is auto (on a terminal, unless NO_COLOR is set), always or never")
	set.DurationVar(&f.timeout, "timeout", 0, "give up after this `time`, such as 30s; 0 has no limit but those of the plugins")
}

// variable is a variable of the environment, or what stands for it.
func (a *app) variable(name, otherwise string) string {
	if value := a.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

// takesNoOwner is the annotation of commands that take an empty --owner: they can do without the
// owner of a record that is damaged.
const takesNoOwner = "takesNoOwner"

func (f *flags) validate(cmd *cobra.Command) error {
	if !slices.Contains([]string{colorAuto, colorAlways, colorNever}, f.color) {
		return usageError("--color %q is none of auto, always, never", f.color)
	}
	if _, ok := cmd.Annotations[takesNoOwner]; f.owner == "" && !ok {
		return usageError("--owner is empty: name a program, as 'embedcni list --all-owners' does")
	}
	if f.builtin == "" {
		return usageError("--builtin is empty: it is fallback, all, or types such as bridge,host-local")
	}
	return nil
}

// logger writes warnings to stderr, as lines for people.
func (a *app) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(a.Err, &slog.HandlerOptions{Level: slog.LevelWarn, ReplaceAttr: func(_ []string, attr slog.Attr) slog.Attr {
		if attr.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return attr
	}}))
}

// usageErrors gives mistakes in the arguments of a command, and of those below it, the exit
// code of usage.
func usageErrors(cmd *cobra.Command) {
	if cmd.HasSubCommands() && !cmd.Runnable() {
		cmd.Args, cmd.RunE = wantsCommand, func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			err := check(cmd, args)
			if exit := (*exitError)(nil); err != nil && !errors.As(err, &exit) {
				return usageError("%w", err)
			}
			return err
		}
	}
	for _, below := range cmd.Commands() {
		usageErrors(below)
	}
}

// wantsCommand is for a command that only has others below it.
func wantsCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
	cmd.SuggestionsMinimumDistance = 2 // letters, as cobra's own
	if like := cmd.SuggestionsFor(args[0]); len(like) > 0 {
		text += "; do you mean " + strings.Join(like, " or ") + "?"
	}
	return errors.New(text)
}

// indent is text four spaces to the right, which man pages leave as it is.
func indent(text string) string {
	return "    " + strings.ReplaceAll(text, "\n", "\n    ")
}

// plural is a number with its noun.
func plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}
