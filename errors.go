package cni

import (
	"errors"
	"fmt"

	"github.com/embedcni/cni/internal/engine/engine"
	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/outcome"
)

// Errors for errors.Is; package outcome says more of each. The first six are go-cni's.
var (
	ErrCNINotInitialized = outcome.ErrCNINotInitialized // too few networks are loaded
	ErrInvalidConfig     = outcome.ErrInvalidConfig     // a network configuration is invalid
	ErrNotFound          = outcome.ErrNotFound          // a configuration or a result is missing
	ErrRead              = outcome.ErrRead              // a configuration could not be read
	ErrInvalidResult     = outcome.ErrInvalidResult     // a plugin's result is invalid
	ErrLoad              = outcome.ErrLoad              // Load failed

	ErrInvalidArgument = outcome.ErrInvalidArgument // an argument of the caller is invalid; nothing ran
	ErrInvalidNetNS    = outcome.ErrInvalidNetNS    // the path is not a network namespace, or is the host's; nothing ran
	ErrHostNetNS       = outcome.ErrHostNetNS       // the host's namespace in which the plugins ran is out of reach; nothing ran
	ErrAlreadyAttached = outcome.ErrAlreadyAttached // the container has that interface; nothing ran
	ErrBusy            = outcome.ErrBusy            // another call for the container is under way
	ErrInsidePlugin    = outcome.ErrInsidePlugin    // the call came from a plugin, and would wait for itself
	ErrPortInUse       = outcome.ErrPortInUse       // a port of the host is another container's; see PortError
	ErrNotHostAddress  = outcome.ErrNotHostAddress  // the host does not have the address of a port
	ErrNotAttached     = outcome.ErrNotAttached     // the container, or that interface, is not attached
	ErrInsecureFile    = outcome.ErrInsecureFile    // others may write a plugin, a configuration, or a directory above
	ErrPluginNotFound  = outcome.ErrPluginNotFound  // no plugin of the type is installed, registered or built in
	ErrPluginOutput    = outcome.ErrPluginOutput    // a plugin's output is too long for a result
	ErrNotSupported    = outcome.ErrNotSupported    // needs Linux; an errors.ErrUnsupported

	// Reasons of a Health, and of Report.Kept.
	ErrPluginKilled   = outcome.ErrPluginKilled   // a signal ended the plugin before it answered
	ErrNoAnswer       = outcome.ErrNoAnswer       // the plugin ended without an answer, or did not start
	ErrPluginNotReady = outcome.ErrPluginNotReady // the plugin asks to be tried again later
	ErrNoCheck        = outcome.ErrNoCheck        // the configuration is older than CHECK

	// Reasons of a repair that was not made.
	ErrHeld          = outcome.ErrHeld          // an administrator holds it; see package guard
	ErrNotRepairable = outcome.ErrNotRepairable // the error says why, and what to do instead
	ErrInContainer   = outcome.ErrInContainer   // it is in the container's namespace; see RepairOptions.Inside
)

// These errors have fields that say more; errors.As finds the first of several.
type (
	// Error is the failure of one network of one container, or of one of its plugins;
	// several are joined. [outcome.Error] has its fields: the verb, the network, the plugin,
	// its code, its words and its stderr, which %+v prints.
	Error = outcome.Error

	// LeftoverError means that a container, or a part of it, could not be removed; see
	// [outcome.LeftoverError]. It is the error of every removal after which the container's
	// record stays. [Runtime.Remove] tries again, and so do [Runtime.Recover] and [Runtime.GC]
	// by themselves; [Runtime.CleanUp] removes attachments that Remove cannot end.
	LeftoverError = outcome.LeftoverError

	// RecordError means that a container's attachment record cannot be used; see
	// [outcome.RecordError]. The container may be alive, so no call changes anything about it.
	RecordError = outcome.RecordError

	// PortError says who has a port of the host that [Runtime.Setup] was asked to forward; see
	// [outcome.PortError]. It is an error, or a warning in [Result].PortWarnings.
	PortError = outcome.PortError
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
	return joined.Errorf("%w: %w", engine.WithSentinel(err), kind)
}

// loadError wraps Load's errors. go-cni loses the kind of the error here; importers
// match on both ends of the text.
func loadError(err error) error {
	return joined.Errorf("cni config load failed: %w: %w", err, ErrLoad)
}
