package runner

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/run/invoke"
	"github.com/embedcni/cni/plugin"
)

// Failure is the failure of one plugin's call. Plugin is empty if no plugin has
// failed.
type Failure struct {
	Verb, Plugin string
	Kind         Kind
	Code         uint // the plugin's error code; 0 if it gave none
	Msg, Details string
	Stderr       string
	Err          error // the cause
}

// unknownContainer is the error code of a plugin that does not know the
// container, so that there is nothing to clean.
const unknownContainer = types.ErrUnknownContainer

func (f *Failure) is(code uint) bool { return f != nil && f.Code == code }

// failure returns the failure of one plugin call, nil if it succeeded.
func failure(call chain.Call, kind Kind, out invoke.Output, err error) *Failure {
	if err == nil {
		return nil
	}
	f := &Failure{Verb: call.Verb, Plugin: call.Plugin, Kind: kind, Stderr: string(out.Stderr), Err: err}
	if kind == Executable {
		f.Err = executableError(out, err)
	}
	if errors.As(f.Err, new(*types.Error)) && !errors.As(err, new(*stoppedError)) {
		f.say()
	}
	return f
}

// say sets what the plugin said in its error.
func (f *Failure) say() {
	said := Said(f.Err)
	f.Code, f.Msg, f.Details = said.Code, said.Msg, said.Details
}

// executableError returns the [*types.Error] that an executable printed when it failed, or
// a description of its end. A plugin that exits with an error prints one on stdout; if it
// prints none, its exit status is reported.
func executableError(out invoke.Output, err error) error {
	var said types.Error
	notRead := json.Unmarshal(out.Stdout, &said)
	printed := notRead == nil && said != types.Error{}
	exited := errors.As(err, new(*invoke.ExitError))
	switch {
	case printed && (exited || errors.Is(err, invoke.ErrUnknownExit)):
		return &said
	case !exited:
		return err
	case len(out.Stdout) == 0:
		return fmt.Errorf("ended without an error message: %w", err)
	case notRead != nil:
		return fmt.Errorf("%w, and what it printed is no error: %s: %w", err, excerpt(out.Stdout), notRead)
	}
	return fmt.Errorf("%w, and what it printed is no error: %s", err, excerpt(out.Stdout))
}

// excerpt shortens a plugin's output for an error.
func excerpt(out []byte) string {
	const most = 512
	if len(out) <= most {
		return fmt.Sprintf("%q", out)
	}
	return fmt.Sprintf("%q… (%d bytes)", out[:most], len(out))
}

// delegateError returns the error of an executable to which a plugin delegates.
func delegateError(call chain.Call, out invoke.Output, err error) error {
	if err == nil {
		return nil
	}
	err = executableError(out, err)
	said := (*types.Error)(nil)
	switch {
	case !errors.As(err, &said):
		return plugin.Errorf(types.ErrInternal, "plugin type=%q failed (%s): %w", call.Plugin, Verb(call.Verb), err)
	case Trim(said.Error()) == "":
		return &types.Error{Code: said.Code, Msg: NoMessage}
	}
	return said
}

// NoMessage stands for the text of an error that has none.
const NoMessage = "no error message"

// Trim returns the text of another program's error without separators at its ends.
// Such a text may be empty, end with a separator ("exit status 1: "), or begin with
// one, as details without a message do.
func Trim(text string) string {
	return strings.TrimRight(strings.TrimLeft(text, "; \t\n"), ": \t\n")
}

// Reason returns the text of a failure: the plugin's own words, or those of the cause.
func Reason(msg, details string, err error) string {
	if msg = Trim(msg); msg != "" && details != "" {
		return msg + "; " + details
	}
	if msg == "" && err != nil {
		msg = Trim(err.Error())
	}
	return cmp.Or(msg, NoMessage)
}

// Verb returns the name of a verb in libcni's errors.
func Verb(verb string) string {
	if verb == "DEL" {
		return "delete"
	}
	return strings.ToLower(verb)
}

// deadlineError means that a limit of this library ended a plugin.
type deadlineError struct {
	verb  string
	limit time.Duration
}

// Error says what the limit was. Whoever reports it says that the plugin was killed, or
// stopped.
func (d *deadlineError) Error() string {
	return fmt.Sprintf("took longer than the %v that a plugin has for %s (see WithTimeouts)", d.limit, d.verb)
}

func (d *deadlineError) Unwrap() error { return context.DeadlineExceeded }

// stoppedError is the error of an in-process plugin whose context had ended,
// with the cause of that.
type stoppedError struct{ said, cause error }

// stopped turns err into a stoppedError if it is the error of a context that has
// ended.
func stopped(ctx context.Context, err error) error {
	if ended := ctx.Err(); err != nil && ended != nil && errors.Is(err, ended) {
		return &stoppedError{err, context.Cause(ctx)}
	}
	return err
}

func (s *stoppedError) Error() string {
	cause := s.cause.Error()
	if d := (*deadlineError)(nil); errors.As(s.cause, &d) {
		cause = "stopped: " + d.Error()
	}
	if said := s.said.Error(); said != context.DeadlineExceeded.Error() && said != context.Canceled.Error() {
		cause += ": " + said
	}
	return cause
}

func (s *stoppedError) Unwrap() []error { return []error{s.cause, s.said} }
