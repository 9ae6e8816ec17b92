// Package outcome has the types that calls of package cni return: their errors, the verdicts
// on containers, and the reports on several. Package cni has them under the same names,
// so that a program need not import this package.
package outcome

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/thread"
	"github.com/embedcni/cni/internal/run/runner"
	"github.com/embedcni/cni/internal/store/record"
)

// Errors for errors.Is. The first six are go-cni's.
var (
	// ErrCNINotInitialized: too few networks are loaded.
	ErrCNINotInitialized = errors.New("cni plugin not initialized")
	// ErrInvalidConfig: a network configuration is invalid.
	ErrInvalidConfig = errors.New("invalid cni config")
	// ErrNotFound: a configuration or a result is missing.
	ErrNotFound = errors.New("not found")
	// ErrRead: a configuration could not be read.
	ErrRead = errors.New("failed to read config file")
	// ErrInvalidResult: a plugin's result is invalid.
	ErrInvalidResult = errors.New("invalid result")
	// ErrLoad: Load failed. The error has the reason too.
	ErrLoad = errors.New("failed to load cni config")

	// ErrInvalidArgument: an argument of the caller is invalid; nothing ran.
	ErrInvalidArgument = errors.New("invalid argument")
	// ErrInvalidNetNS: the path is not a network namespace, or is the host's: the
	// plugins' own, process 1's, or this process's by a /proc path; nothing ran.
	ErrInvalidNetNS = errors.New("invalid network namespace")
	// ErrHostNetNS: the container's plugins ran in another host network namespace,
	// which cannot be found from here; nothing ran.
	ErrHostNetNS = errors.New("host network namespace out of reach")
	// ErrAlreadyAttached: the container has that interface; nothing ran.
	ErrAlreadyAttached = errors.New("attachment already exists")
	// ErrBusy: another call for the container is under way, in a process that lives
	// or may live, such as a stopped one. Recover and GC report it and go on; Setup
	// and Remove wait.
	ErrBusy = errors.New("another call for the container is under way")
	// ErrInsidePlugin: the call came from a plugin of another call on the same state
	// directory, and would wait for that call; see WithPlugin.
	ErrInsidePlugin = errors.New("called from inside a plugin")
	// ErrPortInUse: a port of the host that the call asks for is another container's, on
	// record or, attached by a program that uses libcni itself, in libcni's cache; see
	// [PortError]. Nothing ran, unless the error is an [Error] of the plugin, which found
	// the port taken by a container that is not on record here.
	ErrPortInUse = errors.New("host port in use")
	// ErrNotHostAddress: a port is to be forwarded at an address that the host does not
	// have; see WithStrictPorts.
	ErrNotHostAddress = errors.New("not an address of the host")
	// ErrNotAttached: the container, or the interface that the call is about, is not
	// attached.
	ErrNotAttached = errors.New("not attached")
	// ErrInsecureFile: a plugin or configuration, or a directory on the way to it, is
	// writable by every user, or belongs to a user other than root and this
	// process's; see WithInsecureFiles.
	ErrInsecureFile = errors.New("insecure file")
	// ErrPluginNotFound: the plugin is in none of the plugin directories, and neither
	// registered nor built in; or a registered plugin attached the container, and
	// none is registered now.
	ErrPluginNotFound = errors.New("plugin not found")
	// ErrPluginOutput: the plugin's output is too long for a result.
	ErrPluginOutput = errors.New("plugin output too large")
	// ErrNotSupported: needs Linux. It wraps errors.ErrUnsupported.
	ErrNotSupported = fmt.Errorf("needs Linux: %w", errors.ErrUnsupported)

	// The next four are reasons of a [Health], and of the Kept of a [Report].
	// ErrPluginKilled: a signal of another program ended the plugin before it answered.
	ErrPluginKilled = errors.New("plugin killed")
	// ErrNoAnswer: the plugin ended, or could not be started, and has not said why.
	ErrNoAnswer = errors.New("no answer of the plugin")
	// ErrPluginNotReady: the plugin asks to be tried again later (code 11), or is not
	// available (code 50).
	ErrPluginNotReady = errors.New("plugin not ready")
	// ErrNoCheck: the configuration is older than 0.4.0, which introduced CHECK.
	ErrNoCheck = errors.New("no CHECK before version 0.4.0")

	// The last three are reasons of a repair that was not made.
	// ErrHeld: an administrator holds it; see package guard.
	ErrHeld = errors.New("held")
	// ErrNotRepairable: Repair cannot, or must not, make a container or a part of it
	// again. The error says why, and what to do instead.
	ErrNotRepairable = errors.New("not repairable")
	// ErrInContainer: something is missing in the container's namespace, in which Repair
	// changes nothing unless RepairOptions.Inside is set.
	ErrInContainer = errors.New("in the container's namespace, which is its own")
)

// Error is the failure of one network of one container, or of one of its plugins.
// Several print in one line, and with %+v in lines of their own; errors.As finds the first.
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
	Stderr  string // the last 64 KiB that the plugin wrote to stderr; %+v prints it

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
	b.WriteString(runner.Reason(e.Msg, e.Details, e.Err))
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
	case strings.Contains(runner.Reason(e.Msg, e.Details, e.Err), "it needs the capability"):
		return "" // which a part of this library has named
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
	if joined.Whole(s, verb) && e.Stderr != "" {
		short := *e
		short.Stderr = ""
		fmt.Fprintf(s, "%s\nstderr of %s:\n%s", short.Error(), e.Plugin, e.Stderr)
		return
	}
	joined.Print(s, verb, e.Error())
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
	noun := "lines"
	if omitted == 1 {
		noun = "line"
	}
	return fmt.Sprintf("(%d %s omitted) %s", omitted, noun, strings.Join(lines[omitted:], " | "))
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

// LeftoverError means that a container, or a part of it, could not be removed.
// It is the error of every removal after which the container's record stays: of
// Remove, of CleanUp, of a Setup that could not be undone, and in the Failed of
// Recover and GC. Remove tries again, and so do Recover and GC by themselves;
// CleanUp removes attachments that Remove cannot end.
type LeftoverError struct {
	ContainerID string
	Left        []string // a line for each thing found after the removal, for a person
	Err         error    // the cause; wraps *Errors of plugins
}

// Error names the cause, the remaining things, and the remedy.
func (e *LeftoverError) Error() string {
	return "container " + e.ContainerID + " " + e.what()
}

// what is Error without the container.
func (e *LeftoverError) what() string {
	s := "could not be removed"
	if why := e.Why(); why != "" {
		s += ": " + why
	}
	if remedy := e.remedy(); remedy != "" {
		s += "; " + remedy
	}
	return s
}

// remedy returns what to do, unless the cause names it.
func (e *LeftoverError) remedy() string {
	if errors.As(e.Err, new(*RecordError)) {
		return "" // CleanUp leaves such a record alone too
	}
	return "fix the cause and call Remove again, or call CleanUp to abandon it"
}

// Format prints the cause, each remaining thing and the remedy in lines of their own with %+v.
func (e *LeftoverError) Format(s fmt.State, verb rune) {
	if !joined.Whole(s, verb) {
		joined.Print(s, verb, e.Error())
		return
	}
	fmt.Fprintf(s, "container %s could not be removed", e.ContainerID)
	if e.Err != nil {
		fmt.Fprintf(s, ": %+v", e.Err)
	}
	for _, one := range e.Left {
		fmt.Fprintf(s, "\nleft: %s", one)
	}
	if remedy := e.remedy(); remedy != "" {
		fmt.Fprintf(s, "\n%s", remedy)
	}
}

// Why returns the cause and the remaining things, without the remedy.
func (e *LeftoverError) Why() string {
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
