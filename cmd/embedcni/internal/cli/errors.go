package cli

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/embedcni/cni"
)

// complain writes an error, and what to do about it.
func (a *app) complain(command string, err error) {
	var silent *exitError
	if errors.As(err, &silent) && silent.err == nil {
		return
	}
	label := command + ":"
	if a.colors(a.Err) {
		label = paint(red, label)
	}
	fmt.Fprintln(a.Err, label, err)
	if advice := a.advice(command, err); advice != "" {
		fmt.Fprintln(a.Err, "  "+advice)
	}
}

// advice returns what to do about an error; nothing if the error says it itself, or if there
// is nothing better to say.
func (a *app) advice(command string, err error) string {
	var own *adviceError
	switch {
	case errors.As(err, &own):
		return own.advice
	case codeOf(err) == exitUsage:
		return fmt.Sprintf("See '%s --help'.", command)
	case errors.Is(err, cni.ErrNotAttached):
		return "'embedcni list --all-owners' shows what is on record in " + a.flags.stateDir + "."
	case errors.Is(err, cni.ErrPluginNotFound):
		return "Install the plugin in a directory of --plugin-dir, or have it built in with --builtin=all."
	case errors.Is(err, cni.ErrBusy):
		return "Another call for the container is under way; try again when it has ended."
	case errors.Is(err, cni.ErrInsecureFile):
		return "Take write permission from other users: chmod o-w, or chown root."
	case errors.Is(err, os.ErrPermission):
		return "Run the command as root: it reads the records, and enters and changes network namespaces."
	case errors.Is(err, context.DeadlineExceeded) && a.flags.timeout > 0:
		return "Give it more time with --timeout."
	}
	return ""
}
