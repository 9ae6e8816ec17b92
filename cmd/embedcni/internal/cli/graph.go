package cli

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/embedcni/cni/cmd/embedcni/internal/graph"
)

// graphFlags are those of graph.
type graphFlags struct {
	output, format, name string
	allOwners            bool
	withoutCheck         bool
}

func newGraphCommand(a *app) *cobra.Command {
	var f graphFlags
	cmd := &cobra.Command{
		Use:     "graph",
		GroupID: groupLook,
		Short:   "Draws the host's networks: bridges, containers, addresses, ports, and what is broken.",
		Long: `Graph draws the networks of the host as a picture (SVG) or as text for Graphviz (DOT):
each bridge with the containers on it, their addresses of both families, and the ports of
the host that lead to them. What is broken is red and says why, as health does. A browser
shows more of each box when the mouse is on it.

Graph changes nothing. Networks without a container are those of --conf-dir.`,
		Example: `  embedcni graph -o networks.svg
  embedcni graph --format dot | dot -Tpdf > networks.pdf`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.graph(cmd.Context(), f) },
	}
	set := cmd.Flags()
	set.StringVarP(&f.output, "output", "o", "", "write to this `file` instead of stdout")
	set.StringVar(&f.format, "format", "", "svg or dot; by default that of the file's name, or svg")
	set.StringVar(&f.name, "name", "", "the host's `name` in the picture, if it is not the system's")
	set.BoolVar(&f.withoutCheck, "no-check", false, "only compare: ask no plugin for CHECK")
	addAllOwners(cmd, &f.allOwners)
	return cmd
}

// graphWriters are the formats of graph.
var graphWriters = map[string]func(io.Writer, graph.Host) error{"svg": graph.WriteSVG, "dot": graph.WriteDOT}

func (a *app) graph(ctx context.Context, f graphFlags) error {
	format := f.format
	if ext := strings.TrimPrefix(filepath.Ext(f.output), "."); format == "" {
		format = "svg"
		if ext == "dot" || ext == "gv" {
			format = "dot"
		}
	}
	write, ok := graphWriters[format]
	if !ok {
		return usageError("--format %q is neither svg nor dot", format)
	}
	host, err := a.lookAtNode(ctx, f)
	if err != nil {
		return err
	}
	if a.flags.json {
		return a.print(host, nil)
	}
	var b bytes.Buffer
	if err := write(&b, host); err != nil {
		return err
	}
	if f.output == "" {
		_, err := a.Out.Write(b.Bytes())
		return err
	}
	return os.WriteFile(f.output, b.Bytes(), 0o644)
}

// lookAtNode makes the model for a picture.
func (a *app) lookAtNode(ctx context.Context, f graphFlags) (graph.Host, error) {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	// The containers are drawn from their records, whether or not their networks load.
	rt, err := a.openAny()
	if err != nil {
		return graph.Host{}, err
	}
	o := graph.Options{Name: f.name, Owner: a.flags.owner, WithoutCheck: f.withoutCheck}
	if f.allOwners {
		o.Owner = ""
	}
	if o.Name == "" {
		if o.Name, err = os.Hostname(); err != nil {
			return graph.Host{}, err
		}
	}
	if !f.allOwners {
		recorded, err := a.recorded(rt, nil)
		if err != nil {
			return graph.Host{}, err
		}
		a.noteOthers(otherOwners(recorded))
	}
	p := a.begin("graph", 0)
	defer p.end()
	return graph.Look(ctx, rt, o)
}
