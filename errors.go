package cni

import (
	"errors"
	"fmt"

	"github.com/embedcni/cni/internal/engine/engine"
	"github.com/embedcni/cni/internal/store/conflist"
)

// Errors for errors.Is. The first six are go-cni's.
var (
	ErrCNINotInitialized = engine.ErrCNINotInitialized
	ErrInvalidConfig     = engine.ErrInvalidConfig
	ErrNotFound          = engine.ErrNotFound
	ErrRead              = engine.ErrRead
	ErrInvalidResult     = engine.ErrInvalidResult
	ErrLoad              = engine.ErrLoad

	// ErrInvalidArgument: an argument of the caller is invalid; nothing ran.
	ErrInvalidArgument = engine.ErrInvalidArgument
	// ErrInvalidNetNS: the path is not a network namespace, or is the host's: the
	// plugins' own, process 1's, or this process's by a /proc path; nothing ran.
	ErrInvalidNetNS = engine.ErrInvalidNetNS
	// ErrHostNetNS: the container's plugins ran in another host network namespace,
	// which cannot be found from here; nothing ran.
	ErrHostNetNS = engine.ErrHostNetNS
	// ErrAlreadyAttached: the container has that interface; nothing ran.
	ErrAlreadyAttached = engine.ErrAlreadyAttached
	// ErrBusy: another call for the container is under way, in a process that lives
	// or may live, such as a stopped one. Recover and GC report it and go on; Setup
	// and Remove wait.
	ErrBusy = engine.ErrBusy
	// ErrInsidePlugin: the call came from a plugin of another call on the same state
	// directory, and would wait for that call; see WithPlugin.
	ErrInsidePlugin = engine.ErrInsidePlugin
	// ErrPortInUse: a port of the host that the call asks for is another container's, on
	// record or, attached by a program that uses libcni itself, in libcni's cache; see
	// PortError. Nothing ran, unless the error is an Error of the plugin, which found
	// the port taken by a container that is not on record here.
	ErrPortInUse = engine.ErrPortInUse
	// ErrNotHostAddress: a port is to be forwarded at an address that the host does not
	// have; see WithStrictPorts.
	ErrNotHostAddress = engine.ErrNotHostAddress
	// ErrNotAttached: the container, or the interface that the call is about, is not
	// attached.
	ErrNotAttached = engine.ErrNotAttached
	// ErrInsecureFile: a plugin or configuration, or a directory on the way to it, is
	// writable by every user, or belongs to a user other than root and this
	// process's; see WithInsecureFiles.
	ErrInsecureFile = engine.ErrInsecureFile
	// ErrPluginNotFound: the plugin is in none of the plugin directories, and neither
	// registered nor built in; or a registered plugin attached the container, and
	// none is registered now.
	ErrPluginNotFound = engine.ErrPluginNotFound
	// ErrPluginOutput: the plugin's output is too long for a result.
	ErrPluginOutput = engine.ErrPluginOutput
	// The next four are reasons of a Health, and of Report.Kept. ErrPluginKilled: a signal
	// of another program ended the plugin before it answered.
	ErrPluginKilled = engine.ErrPluginKilled
	// ErrNoAnswer: the plugin ended, or could not be started, and has not said why.
	ErrNoAnswer = engine.ErrNoAnswer
	// ErrPluginNotReady: the plugin asks to be tried again later (code 11), or is not
	// available (code 50).
	ErrPluginNotReady = engine.ErrPluginNotReady
	// ErrNoCheck: the configuration is older than 0.4.0, which introduced CHECK.
	ErrNoCheck = engine.ErrNoCheck
	// ErrHeld: it is not repaired, since an administrator holds it; see package guard.
	ErrHeld = engine.ErrHeld
	// ErrNotRepairable: Repair cannot, or must not, make a container or a part of it
	// again. The error says why, and what to do instead.
	ErrNotRepairable = engine.ErrNotRepairable
	// ErrInContainer: something is missing in the container's namespace, in which Repair
	// changes nothing unless RepairOptions.Inside is set.
	ErrInContainer = engine.ErrInContainer
	// ErrNotSupported: needs Linux. It wraps errors.ErrUnsupported.
	ErrNotSupported = engine.ErrNotSupported
)

// These errors have fields that say more; errors.As finds the first of several.
type (
	// Error is the failure of one network of one container, or of one of its plugins;
	// several are joined.
	//
	//	Op          string // CNI_COMMAND: ADD, DEL, CHECK, STATUS; or REPAIR
	//	Network     string
	//	Plugin      string // its type; empty if the failure is not a plugin's
	//	PluginKind  string // as NetworkConf.Kind; empty if no plugin ran
	//	ContainerID string
	//	IfName      string
	//	Code        uint   // the plugin's error code (CNI specification 1.1.0, section 5); 0 if it gave none
	//	Msg         string // the plugin's own words
	//	Details     string
	//	Stderr      string // the last 64 KiB that the plugin wrote to stderr; %+v prints it
	//	Err         error
	//
	// Err is the cause: a *types.Error if an executable answered with one, the error that
	// an in-process plugin returned, or a context error if the plugin was killed or stopped.
	Error = engine.Error

	// LeftoverError means that a container, or a part of it, could not be removed.
	// It is the error of every removal after which the container's record stays: of
	// Remove, of CleanUp, of a Setup that could not be undone, and in the Failed of
	// Recover and GC. Remove tries again, and so do Recover and GC by themselves;
	// CleanUp removes attachments that Remove cannot end.
	//
	//	ContainerID string
	//	Left        []string // a line for each thing found after the removal, for a person
	//	Err         error    // the cause; wraps *Errors of plugins
	LeftoverError = engine.LeftoverError

	// RecordError means that a container's attachment record cannot be used: a newer
	// version of this package wrote it, or the file could not be opened or read. The
	// container may be alive, so no call changes anything about it. A damaged
	// record, which was read to its end, is no RecordError.
	//
	//	ContainerID string // empty if only the record contains it
	//	Path        string // the record's path
	//	Newer       bool   // a newer version wrote it; otherwise it could not be read
	//	Err         error
	RecordError = engine.RecordError

	// PortError says who has a port of the host that Setup was asked to forward. It is an
	// error, or a warning in Result.PortWarnings.
	//
	//	Protocol string     // tcp, udp or sctp; this and the next two were asked for
	//	HostIP   netip.Addr // the zero Addr: all addresses of the host
	//	HostPort int
	//	HolderIP netip.Addr // at which a container has the port, or as HostIP; the zero Addr: all
	//
	//	// The container that has the port, from its record; all are empty if no container has
	//	// it. Owner and State are empty for one that another program attached, which is only in
	//	// libcni's cache.
	//	ContainerID, Network, IfName, Owner string
	//	State                               AttachmentState
	//
	//	Err error // ErrPortInUse or ErrNotHostAddress; nil if read from JSON
	PortError = engine.PortError
)

// IsCNINotInitialized reports whether too few networks are loaded.
func IsCNINotInitialized(err error) bool { return errors.Is(err, ErrCNINotInitialized) }

// IsInvalidConfig reports whether a network configuration is invalid.
func IsInvalidConfig(err error) bool { return errors.Is(err, ErrInvalidConfig) }

// IsNotFound reports whether a configuration or a result is missing.
func IsNotFound(err error) bool { return errors.Is(err, ErrNotFound) }

// IsReadFailure reports whether a configuration could not be read.
func IsReadFailure(err error) bool { return errors.Is(err, ErrRead) }

// IsInvalidResult reports whether a plugin's result is invalid.
func IsInvalidResult(err error) bool { return errors.Is(err, ErrInvalidResult) }

// configError classifies a configuration's error with go-cni's words and sentinels. If
// files were found and none is usable, there are two: nothing is loaded, and
// something is invalid.
func configError(err error) error {
	var bad *conflist.FileError
	none := errors.Is(err, conflist.ErrNone)
	kind := ErrInvalidConfig
	switch {
	case none && !errors.As(err, &bad):
		kind = ErrCNINotInitialized
	case none:
		kind = fmt.Errorf("%w: %w", ErrInvalidConfig, ErrCNINotInitialized)
	case errors.Is(err, conflist.ErrRead):
		kind = ErrRead
	}
	return fmt.Errorf("%w: %w", engine.WithSentinel(err), kind)
}

// loadError wraps Load's errors. go-cni loses the kind of the error here; importers
// match on both ends of the text.
func loadError(err error) error {
	return fmt.Errorf("cni config load failed: %w: %w", err, ErrLoad)
}
