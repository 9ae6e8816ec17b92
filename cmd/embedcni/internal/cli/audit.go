package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/cmd/embedcni/internal/audit"
)

func newAuditCommand(a *app) *cobra.Command {
	var also []string
	o := audit.Options{NetNSDir: "/run/netns", ProcDir: "/proc"}
	cmd := &cobra.Command{
		Use:     "audit",
		GroupID: groupLook,
		Short:   "Lists what on this host belongs to nobody.",
		Long: `Audit lists things that CNI has made on this host and that belong to no living container:
records and cached results of containers that are gone, addresses that host-local holds,
rules of packet filters, interfaces, bridges and namespaces.

  nobody's             its container is on no record and does not live: libcni's cache has
                       no namespace of it that lives, and no namespace in use has its
                       address. Or it is on record and gone. What removes it stands below
  another owner's      it is, or may be, of another program: that removes it
  could not be asked   it could not be read, for the reason beside it

A program with another state directory has its records there: name that with
--also-state-dir, or its containers' things seem to be nobody's.

Audit changes nothing. It reads rules with iptables-save and nft, and needs root, and the
PID namespace of the host, to see the network namespaces of all processes. The exit code is
3 if anything is nobody's or could not be asked.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.audit(cmd.Context(), o, also) },
	}
	cmd.Flags().StringSliceVar(&also, "also-state-dir", nil, "the state `directories` of other programs, whose containers own what they have")
	cmd.Flags().StringVar(&o.NetNSDir, "netns-dir", o.NetNSDir, "the `directory` of named network namespaces")
	cmd.Flags().StringVar(&o.ProcDir, "proc", o.ProcDir, "the `directory` of the host's processes, if that is another one, as in a container")
	return cmd
}

func (a *app) audit(ctx context.Context, o audit.Options, also []string) error {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	// The configurations say where host-local has addresses, and which bridges are used.
	rt, err := a.openAny()
	if err != nil {
		return err
	}
	o.Runtimes, o.Owner, o.StateFlags = []*cni.Runtime{rt}, a.flags.owner, a.stateFlags()
	for _, dir := range also {
		other, err := a.open(cni.WithStateDir(dir), cni.WithRecordDir(""))
		if err != nil {
			return err
		}
		o.Runtimes = append(o.Runtimes, other)
	}
	p := a.begin("audit", 0)
	found, err := audit.Run(ctx, o)
	p.end()
	if err != nil {
		return err
	}
	if found == nil {
		found = []audit.Finding{}
	}
	if err := a.print(found, func() string { return a.auditTable(found) }); err != nil {
		return err
	}
	if slices.ContainsFunc(found, func(f audit.Finding) bool { return f.Whose != audit.Another }) {
		return errBad
	}
	return nil
}

// stateFlags are the flags that a command in a mend needs to find the same state.
func (a *app) stateFlags() string {
	var flags []string
	for _, f := range []struct{ name, value, usual string }{
		{"--state-dir", a.flags.stateDir, "/var/lib/cni"}, {"--record-dir", a.flags.recordDir, ""}, {"--host-netns", a.flags.hostNetNS, ""},
	} {
		if f.value != f.usual {
			flags = append(flags, f.name+" "+f.value)
		}
	}
	return strings.Join(flags, " ")
}

func (a *app) auditTable(found []audit.Finding) string {
	t := table{header: []string{"WHOSE", "KIND", "CONTAINER", "OWNER", "OBJECT"}}
	counts := map[audit.Whose]int{}
	for _, f := range found {
		counts[f.Whose]++
		t.add(cell{string(f.Whose), whoseColor(f.Whose)}, cell{text: f.Kind}, cell{text: f.ContainerID}, cell{text: f.Owner}, cell{text: f.Object + ": " + f.Detail})
	}
	var b strings.Builder
	if len(found) > 0 {
		b.WriteString(t.format(a.colors(a.Out)))
	}
	var mends []string
	for _, f := range found {
		if f.Mend != "" && !slices.Contains(mends, f.Mend) {
			mends = append(mends, f.Mend)
		}
	}
	if len(mends) > 0 {
		fmt.Fprintf(&b, "\nMend:\n%s\n\n", indent(strings.Join(mends, "\n")))
	}
	if counts[audit.Nobody] == 0 {
		fmt.Fprint(&b, "Nothing is nobody's.")
	} else {
		fmt.Fprintf(&b, "%s nobody's.", pluralIs(counts[audit.Nobody]))
	}
	for _, w := range []audit.Whose{audit.Another, audit.NotAsked} {
		if n := counts[w]; n > 0 {
			fmt.Fprintf(&b, " %d %s.", n, w)
		}
	}
	b.WriteByte('\n')
	return b.String()
}

func pluralIs(n int) string {
	if n == 1 {
		return "1 thing is"
	}
	return fmt.Sprintf("%d things are", n)
}

func whoseColor(w audit.Whose) color {
	switch w {
	case audit.Nobody:
		return red
	case audit.NotAsked:
		return yellow
	}
	return plain
}
