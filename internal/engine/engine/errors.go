package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/engine/container"
	"github.com/embedcni/cni/internal/kernel/netfilter"
	"github.com/embedcni/cni/internal/kernel/plainfile"
	"github.com/embedcni/cni/internal/kernel/thread"
	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/run/invoke"
	"github.com/embedcni/cni/internal/run/runner"
	"github.com/embedcni/cni/internal/store/record"
)

// The errors for errors.Is, which package cni documents.
var (
	ErrCNINotInitialized = errors.New("cni plugin not initialized")
	ErrInvalidConfig     = errors.New("invalid cni config")
	ErrNotFound          = errors.New("not found")
	ErrRead              = errors.New("failed to read config file")
	ErrInvalidResult     = errors.New("invalid result")
	ErrLoad              = errors.New("failed to load cni config")
	ErrInvalidArgument   = errors.New("invalid argument")
	ErrInvalidNetNS      = container.ErrInvalidNetNS
	ErrHostNetNS         = container.ErrHostNetNS
	ErrAlreadyAttached   = errors.New("attachment already exists")
	ErrBusy              = container.ErrBusy
	ErrInsidePlugin      = errors.New("called from inside a plugin")
	ErrPortInUse         = errors.New("host port in use")
	ErrNotHostAddress    = errors.New("not an address of the host")
	ErrNotAttached       = container.ErrNotAttached
	ErrInsecureFile      = errors.New("insecure file")
	ErrPluginNotFound    = errors.New("plugin not found")
	ErrPluginOutput      = errors.New("plugin output too large")
	ErrPluginKilled      = errors.New("plugin killed")
	ErrNoAnswer          = errors.New("no answer of the plugin")
	ErrPluginNotReady    = errors.New("plugin not ready")
	ErrNoCheck           = errors.New("no CHECK before version 0.4.0")
	ErrHeld              = errors.New("held")
	ErrNotRepairable     = errors.New("not repairable")
	ErrInContainer       = errors.New("in the container's namespace, which is its own")
	ErrNotSupported      = container.ErrNotSupported
)

// Error is the failure of one network of one container, or of one of its plugins.
// Several are joined by errors.Join; errors.As finds the first.
type Error struct {
	Op          string // CNI_COMMAND: ADD, DEL, CHECK, STATUS; or REPAIR
	Network     string
	Plugin      string // its type; empty if the failure is not a plugin's
	PluginKind  string // as NetworkConf.Kind; empty if no plugin ran
	ContainerID string
	IfName      string

	Code    uint   // the plugin's error code (CNI specification 1.1.0, section 5); 0 if it gave none
	Msg     string // the plugin's own words
	Details string
	Stderr  string // the last 64 KiB that the plugin wrote to stderr

	// Err is the cause: a *types.Error if an executable answered with one, the error
	// that an in-process plugin returned, or a context error if the plugin was killed
	// or stopped.
	Err error
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Error names the operation, the network, the container and the plugin, and gives
// the plugin's own message. The middle, `plugin type="x" failed (add): …`, is
// libcni's; for an in-process plugin it is `plugin type="x" (built in) failed (add): …`,
// or (registered).
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s network %q", strings.ToLower(e.Op), e.Network)
	switch {
	case e.ContainerID != "":
		fmt.Fprintf(&b, " of container %s, interface %s", e.ContainerID, e.IfName)
	case e.IfName != "": // several configurations have the same name
		fmt.Fprintf(&b, " for interface %s", e.IfName)
	}
	b.WriteString(": ")
	if e.Plugin != "" {
		kind := ""
		if e.PluginKind == record.KindBuiltIn || e.PluginKind == record.KindRegistered {
			kind = fmt.Sprintf(" (%s)", e.PluginKind)
		}
		fmt.Fprintf(&b, "plugin type=%q%s failed (%s): ", e.Plugin, kind, runner.Verb(e.Op))
	}
	b.WriteString(e.why())
	if e.Code != 0 {
		fmt.Fprintf(&b, " (code %d)", e.Code)
	}
	if tail := lastLines(e.Stderr); tail != "" {
		b.WriteString("; stderr: ")
		b.WriteString(tail)
	}
	b.WriteString(e.hint())
	return b.String()
}

// hint returns the remedy, if one is known.
func (e *Error) hint() string {
	switch {
	case errors.As(e.Err, new(*runner.MissingError)):
		return "" // the error has its own
	case errors.Is(e.Err, ErrPluginNotFound):
		return "; install it there, or name its directory with WithPluginDir"
	case e.Code == types.ErrTryAgainLater:
		return "; the plugin asks to be tried again later"
	case strings.Contains(e.Msg, "unknown args"): // types.LoadArgs, which the reference plugins call
		return `; with WithArgs("IgnoreUnknown", "1") plugins ignore arguments that they do not know`
	case errors.Is(e.Err, fs.ErrPermission) || strings.Contains(e.Msg+e.Details, "operation not permitted"):
		return missing(thread.MissingCapabilities())
	default:
		return ""
	}
}

// missing returns a hint at the capabilities that plugins need and this process lacks.
func missing(lacks []string, err error) string {
	if err != nil || len(lacks) == 0 {
		return "" // the reason is another one
	}
	return "; plugins need " + strings.Join(lacks, " and ") + ", which this process lacks"
}

// Format prints the whole error with %+v, including stderr.
func (e *Error) Format(s fmt.State, verb rune) {
	if verb == 'v' && s.Flag('+') && e.Stderr != "" {
		short := *e
		short.Stderr = ""
		fmt.Fprintf(s, "%s\nstderr of %s:\n%s", short.Error(), e.Plugin, e.Stderr)
		return
	}
	fmt.Fprintf(s, fmt.FormatString(plainState{s}, verb), e.Error())
}

// plainState is a fmt.State without the flags that only structs understand.
type plainState struct{ fmt.State }

func (p plainState) Flag(c int) bool { return c != '+' && c != '#' && p.State.Flag(c) }

func (e *Error) why() string {
	if msg := runner.Trim(e.Msg); msg != "" {
		if e.Details != "" {
			return msg + "; " + e.Details
		}
		return msg
	}
	if e.Err != nil {
		if text := runner.Trim(e.Err.Error()); text != "" {
			return text
		}
	}
	return runner.NoMessage
}

// stderrLines limits stderr in an error message to its last lines, which matter most.
// Error.Stderr has all of it.
const stderrLines = 3

func lastLines(stderr string) string {
	stderr = strings.TrimSpace(stderr)
	if stderr == "" {
		return ""
	}
	lines := strings.Split(stderr, "\n")
	omitted := len(lines) - stderrLines
	if omitted <= 0 {
		return strings.Join(lines, " | ")
	}
	return fmt.Sprintf("(%d lines omitted) %s", omitted, strings.Join(lines[omitted:], " | "))
}

// RecordError means that a container's attachment record cannot be used: a newer
// version of this package wrote it, or the file could not be opened or read. The
// container may be alive, so no call changes anything about it. A damaged
// record, which was read to its end, is no RecordError.
type RecordError struct {
	ContainerID string // empty if only the record contains it
	Path        string // the record's path
	Newer       bool   // a newer version wrote it; otherwise it could not be read
	Err         error
}

// Error names the remedy.
func (e *RecordError) Error() string {
	of := ""
	if e.ContainerID != "" {
		of = " of container " + e.ContainerID
	}
	if e.Newer {
		return fmt.Sprintf("record%s: %v; nothing was changed: use the version that wrote it, or a newer one", of, e.Err)
	}
	return fmt.Sprintf("record%s: %v; nothing was changed: try again when the file can be read, or delete it if the container is gone",
		of, e.Err)
}

// Unwrap returns the cause.
func (e *RecordError) Unwrap() error { return e.Err }

// LoadRecord loads a record. The error is a RecordError unless the record is
// damaged.
func LoadRecord(records *record.Store, id record.ID) (*record.Record, error) {
	rec, err := records.Load(id)
	return rec, AsRecordError(records, id, record.Name(id), err)
}

// AsRecordError returns the RecordError for a record that is newer or could not be
// read.
func AsRecordError(records *record.Store, id record.ID, file string, err error) error {
	newer := errors.Is(err, record.ErrNewer)
	if !newer && !errors.Is(err, record.ErrUnread) {
		return err
	}
	return &RecordError{ContainerID: string(id), Path: records.Path(file), Newer: newer, Err: err}
}

// Codes of an error object (CNI specification 1.1.0, section 5): "plugin is not available",
// and those from 100 on, which are the program's own.
const (
	codeNotAvailable   = 50
	codePortInUse      = 100
	codeNotHostAddress = 101
)

// AsCNIError returns an error of this package as the error object of the CNI
// specification (1.1.0, section 5). An error of a plugin keeps its code and its words;
// others get the code of the specification that fits, or 999. Details has the rest of the
// text. It returns nil for nil.
func AsCNIError(err error) *types.Error {
	if err == nil {
		return nil
	}
	if e := (*Error)(nil); errors.As(err, &e) && e.Code != 0 {
		return types.NewError(e.Code, e.why(), err.Error())
	}
	if e := (*types.Error)(nil); errors.As(err, &e) {
		return types.NewError(e.Code, e.Msg, err.Error())
	}
	for _, of := range []struct {
		code  uint
		kinds []error
	}{
		{types.ErrUnknownContainer, []error{ErrNotAttached}},
		{codePortInUse, []error{ErrPortInUse}},
		{codeNotHostAddress, []error{ErrNotHostAddress}},
		{types.ErrInvalidEnvironmentVariables, []error{ErrInvalidArgument, ErrInvalidNetNS}},
		{types.ErrIOFailure, []error{ErrRead}},
		{types.ErrDecodingFailure, []error{ErrInvalidResult, ErrPluginOutput}},
		{types.ErrTryAgainLater, []error{ErrBusy, context.DeadlineExceeded, context.Canceled}},
		{codeNotAvailable, []error{ErrPluginNotFound, ErrInsecureFile}},
		{types.ErrInvalidNetworkConfig, []error{ErrInvalidConfig}},
		{codeNotAvailable, []error{ErrCNINotInitialized}},
	} {
		if slices.ContainsFunc(of.kinds, func(kind error) bool { return errors.Is(err, kind) }) {
			return types.NewError(of.code, err.Error(), "")
		}
	}
	return types.NewError(types.ErrInternal, err.Error(), "")
}

// Join is errors.Join, but returns a single error unchanged: most calls have one
// network, and their callers should get its *Error.
func Join(errs ...error) error {
	errs = slices.DeleteFunc(slices.Clone(errs), func(err error) bool { return err == nil })
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

// sentinels maps errors of inner packages to those of this one.
func sentinels() []struct{ inner, outer error } {
	return []struct{ inner, outer error }{
		{invoke.ErrNotFound, ErrPluginNotFound},
		{invoke.ErrOutputTooLarge, ErrPluginOutput},
		{plainfile.ErrInsecure, ErrInsecureFile},
		{netfilter.ErrHostPortTaken, ErrPortInUse},
		{chain.ErrInvalidResult, ErrInvalidResult},
		{chain.ErrNotAdded, ErrNotAttached},
	}
}

// WithSentinel makes errors.Is find this package's sentinel behind an inner
// package's error, without changing the text.
func WithSentinel(err error) error {
	for _, s := range sentinels() {
		if errors.Is(err, s.inner) && !errors.Is(err, s.outer) {
			err = &tagged{err, s.outer}
		}
	}
	return err
}

// tagged is an error that also matches another one.
type tagged struct {
	error
	also error
}

func (t *tagged) Unwrap() []error { return []error{t.error, t.also} }

// Tag returns the error, which errors.Is finds under another one too.
func Tag(err, also error) error { return &tagged{err, also} }

// LeftoverError means that a container, or a part of it, could not be removed.
type LeftoverError struct {
	ContainerID string
	Left        []string // a line for each thing found after the removal, for a person
	Err         error    // the cause; wraps *Errors of plugins
}

// Error names the cause, the remaining things, and the remedy.
func (e *LeftoverError) Error() string {
	s := fmt.Sprintf("container %s could not be removed", e.ContainerID)
	if why := e.why(); why != "" {
		s += ": " + why
	}
	if errors.As(e.Err, new(*RecordError)) {
		return s // which names the remedy: CleanUp leaves such a record alone too
	}
	return s + "; fix the cause and call Remove again, or call CleanUp to abandon it"
}

// why returns the cause, and the remaining things.
func (e *LeftoverError) why() string {
	var s []string
	if e.Err != nil {
		s = append(s, cmp.Or(runner.Trim(e.Err.Error()), runner.NoMessage))
	}
	if len(e.Left) > 0 {
		s = append(s, "left are "+strings.Join(e.Left, "; "))
	}
	return strings.Join(s, ": ")
}

// Unwrap returns the cause.
func (e *LeftoverError) Unwrap() error { return e.Err }

// leftover turns an error that keeps a container on record into a
// *LeftoverError, unless it contains one.
func leftover(id record.ID, err error) error {
	if err == nil || errors.As(err, new(*LeftoverError)) {
		return err
	}
	return &LeftoverError{ContainerID: string(id), Err: err}
}
