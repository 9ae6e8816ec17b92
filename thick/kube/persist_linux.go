package kube

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// The API server is asked again after a pause, which doubles: soon, because a pod waits,
// and then seldom, because all nodes ask again after an outage.
const (
	firstPause   = 50 * time.Millisecond
	longestPause = 2 * time.Second
)

// persist calls ask until it succeeds, fails for good, or the time for it is over. It returns
// the last answer of ask.
func persist[T any](ctx context.Context, within time.Duration, ask func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("no answer within %v: %w", within, context.DeadlineExceeded))
	defer cancel()
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		found, err := inTime(ctx, ask)
		if err == nil || !isTransient(err) {
			return found, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return found, fmt.Errorf("%w (%w)", err, context.Cause(ctx))
		}
	}
}

// inTime calls ask, and does not wait for it when the context has ended: client-go sleeps for as
// long as an overloaded API server says, which is up to 32 s for each of ten attempts.
func inTime[T any](ctx context.Context, ask func(context.Context) (T, error)) (T, error) {
	type answer struct {
		found T
		err   error
	}
	answers := make(chan answer, 1)
	go func() {
		found, err := ask(ctx)
		answers <- answer{found, err}
	}()
	select {
	case a := <-answers:
		return a.found, a.err
	case <-ctx.Done():
		return *new(T), errNoAnswer
	}
}

var errNoAnswer = errors.New("the API server is overloaded, or does not answer")

// isTransient reports whether the same request may succeed soon.
func isTransient(err error) bool {
	switch {
	case errors.As(err, new(*types.Error)):
		return false
	case apierrors.ReasonForError(err) == "", // no answer of the API server
		apierrors.IsConflict(err), apierrors.IsServerTimeout(err), apierrors.IsTimeout(err), apierrors.IsTooManyRequests(err),
		apierrors.IsServiceUnavailable(err), apierrors.IsInternalError(err):
		return true
	}
	return false
}

// explained returns the error of a request as one of CNI.
func explained(err error, verb, resource, name string) error {
	if said := (*types.Error)(nil); errors.As(err, &said) {
		return said
	}
	text := fmt.Sprintf("%s %s %s: %v", verb, resource, name, err)
	details := ""
	switch {
	case apierrors.IsForbidden(err):
		details = fmt.Sprintf("the daemon's service account needs the verb %s on %s", verb, resource)
	case apierrors.IsUnauthorized(err):
		details = "the API server does not accept the token, or the certificate, of the daemon's service account"
	}
	return types.NewError(types.ErrTryAgainLater, text, details)
}
