package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/embedcni/cni"
)

// readyView is the answer in JSON.
type readyView struct {
	Ready    bool              `json:"ready"`
	Networks []string          `json:"networks"`
	Reasons  []string          `json:"reasons"` // why it is not ready
	Skipped  []skippedFileView `json:"skippedFiles"`
}

type skippedFileView struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
}

func newReadyCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "ready",
		GroupID: groupLook,
		Short:   "Says whether containers can be attached now, and if not, every reason why.",
		Long: `Ready loads the networks of the configuration directory and looks for everything that an
attachment needs: plugins, the answers of their STATUS, free addresses, directories that can
be written, capabilities of the process, features of the kernel. It attaches nothing. The
exit code is 3 if it is not ready.`,
		Example: `  embedcni ready && start-my-runtime`,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.ready(cmd.Context()) },
	}
}

func (a *app) ready(ctx context.Context) error {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	v := readyView{Networks: []string{}, Reasons: []string{}, Skipped: []skippedFileView{}}
	rt, err := a.open(cni.WithLogger(nil)) // the answer has what would be logged
	if err != nil {
		return err
	}
	if err := rt.Load(cni.WithAllConf); err != nil {
		v.Reasons = append(v.Reasons, err.Error())
	} else {
		p := a.begin("ready", 0)
		err := rt.Ready(ctx)
		p.end()
		v.Reasons = append(v.Reasons, reasons(err)...)
	}
	config := rt.GetConfig()
	for _, n := range config.Networks {
		v.Networks = append(v.Networks, n.Config.Name)
	}
	for _, file := range config.Skipped {
		v.Skipped = append(v.Skipped, skippedFileView(file))
	}
	v.Ready = len(v.Reasons) == 0
	if err := a.print(v, func() string { return a.readyText(v) }); err != nil {
		return err
	}
	if !v.Ready {
		return errBad
	}
	return nil
}

// reasons returns the errors that Ready joins, a text for each.
func reasons(err error) (texts []string) {
	if err == nil {
		return nil
	}
	if inner := errors.Unwrap(err); inner != nil {
		err = inner // without the words that introduce the list
	}
	for _, one := range parts(err) {
		texts = append(texts, one.Error())
	}
	return texts
}

// parts returns the errors that are listed in an error, one behind the other; an error that
// only wraps others is one.
func parts(err error) []error {
	list, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var texts []string
	var all []error
	for _, one := range list.Unwrap() {
		texts, all = append(texts, one.Error()), append(all, parts(one)...)
	}
	if text := err.Error(); text != strings.Join(texts, "\n") && text != strings.Join(texts, "; ") {
		return []error{err}
	}
	return all
}

func (a *app) readyText(v readyView) string {
	state := cell{"ready", green}
	if !v.Ready {
		state = cell{"not ready", red}
	}
	t := table{header: []string{"STATE", "DETAIL"}}
	if v.Ready {
		t.add(state, cell{text: plural(len(v.Networks), "network") + ": " + strings.Join(v.Networks, ", ")})
	}
	for _, reason := range v.Reasons {
		t.add(state, cell{text: reason})
	}
	for _, file := range v.Skipped {
		t.add(cell{"skipped", yellow}, cell{text: fmt.Sprintf("%s: %s", file.Path, file.Reason)})
	}
	return t.format(a.colors(a.Out))
}
