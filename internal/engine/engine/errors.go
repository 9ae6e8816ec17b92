package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/netfilter"
	"github.com/embedcni/cni/internal/kernel/plainfile"
	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/run/invoke"
	"github.com/embedcni/cni/internal/run/runner"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/outcome"
)

// LoadRecord loads a record. The error is a RecordError unless the record is
// damaged.
func LoadRecord(records *record.Store, id record.ID) (*record.Record, error) {
	rec, err := records.Load(id)
	if errors.Is(err, record.ErrBad) {
		return rec, mendable(err)
	}
	return rec, AsRecordError(records, id, record.Name(id), err)
}

// mendable names the call that ends the damage of a record.
func mendable(damage error) error {
	return fmt.Errorf("%w; Remove detaches the container and deletes the record", damage)
}

// AsRecordError returns the RecordError for a record that is newer or could not be
// read.
func AsRecordError(records *record.Store, id record.ID, file string, err error) error {
	newer := errors.Is(err, record.ErrNewer)
	if !newer && !errors.Is(err, record.ErrUnread) {
		return err
	}
	return &outcome.RecordError{ContainerID: string(id), Path: records.Path(file), Newer: newer, Err: err}
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
	if e := (*outcome.Error)(nil); errors.As(err, &e) && e.Code != 0 {
		return types.NewError(e.Code, runner.Reason(e.Msg, e.Details, e.Err), err.Error())
	}
	if e := (*types.Error)(nil); errors.As(err, &e) {
		return types.NewError(e.Code, e.Msg, err.Error())
	}
	for _, of := range []struct {
		code  uint
		kinds []error
	}{
		{types.ErrUnknownContainer, []error{outcome.ErrNotAttached}},
		{codePortInUse, []error{outcome.ErrPortInUse}},
		{codeNotHostAddress, []error{outcome.ErrNotHostAddress}},
		{types.ErrInvalidEnvironmentVariables, []error{outcome.ErrInvalidArgument, outcome.ErrInvalidNetNS}},
		{types.ErrIOFailure, []error{outcome.ErrRead}},
		{types.ErrDecodingFailure, []error{outcome.ErrInvalidResult, outcome.ErrPluginOutput}},
		{types.ErrTryAgainLater, []error{outcome.ErrBusy, context.DeadlineExceeded, context.Canceled}},
		{codeNotAvailable, []error{outcome.ErrPluginNotFound, outcome.ErrInsecureFile}},
		{types.ErrInvalidNetworkConfig, []error{outcome.ErrInvalidConfig}},
		{codeNotAvailable, []error{outcome.ErrCNINotInitialized}},
	} {
		if slices.ContainsFunc(of.kinds, func(kind error) bool { return errors.Is(err, kind) }) {
			return types.NewError(of.code, err.Error(), "")
		}
	}
	return types.NewError(types.ErrInternal, err.Error(), "")
}

// Join is [joined.Errors]: most calls have one network, and their callers should get its
// *Error.
func Join(errs ...error) error { return joined.Errors(errs...) }

// sentinels maps errors of inner packages to those of this one.
func sentinels() []struct{ inner, outer error } {
	return []struct{ inner, outer error }{
		{invoke.ErrNotFound, outcome.ErrPluginNotFound},
		{invoke.ErrOutputTooLarge, outcome.ErrPluginOutput},
		{plainfile.ErrInsecure, outcome.ErrInsecureFile},
		{netfilter.ErrHostPortTaken, outcome.ErrPortInUse},
		{chain.ErrInvalidResult, outcome.ErrInvalidResult},
		{chain.ErrNotAdded, outcome.ErrNotAttached},
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

// Format prints the error as it prints itself.
func (t *tagged) Format(s fmt.State, verb rune) { fmt.Fprintf(s, fmt.FormatString(s, verb), t.error) }

// Tag returns the error, which errors.Is finds under another one too.
func Tag(err, also error) error { return &tagged{err, also} }

// leftover turns an error that keeps a container on record into a
// *LeftoverError, unless it contains one.
func leftover(id record.ID, err error) error {
	if err == nil || errors.As(err, new(*outcome.LeftoverError)) {
		return err
	}
	return &outcome.LeftoverError{ContainerID: string(id), Err: err}
}
