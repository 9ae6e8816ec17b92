package cli

import (
	"errors"
	"fmt"

	"github.com/embedcni/cni"
)

// Exit codes. The help of the root command and docs/command.md list them.
const (
	exitOK     = 0
	exitFailed = 1 // the command could not do its work
	exitUsage  = 2 // the command line is wrong; nothing was done
	exitBad    = 3 // the command has done its work, and the answer is bad: broken, not ready
)

const exitCodes = `0  all is well, or done
1  the command failed; stderr says where, why, and what to do
2  the command line is wrong, and nothing was done
3  the command did its work, and the answer is no: a container is broken or unknown,
   the host is not ready, something remains to be repaired`

// exitError carries the exit code of an error. Without an error nothing is printed: the
// command's output has said all.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// errBad is for a command whose output has a bad answer.
var errBad = &exitError{code: exitBad}

// usageError is a mistake on the command line.
func usageError(format string, args ...any) error {
	return &exitError{code: exitUsage, err: fmt.Errorf(format, args...)}
}

// adviceError is an error with what to do about it.
type adviceError struct {
	err    error
	advice string
}

func (e *adviceError) Error() string { return e.err.Error() }
func (e *adviceError) Unwrap() error { return e.err }

// advise adds to an error what to do about it.
func advise(err error, format string, args ...any) error {
	return &adviceError{err: err, advice: fmt.Sprintf(format, args...)}
}

// codeOf returns the exit code of an error.
func codeOf(err error) int {
	var e *exitError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &e):
		return e.code
	case errors.Is(err, cni.ErrInvalidArgument): // nothing ran
		return exitUsage
	}
	return exitFailed
}
