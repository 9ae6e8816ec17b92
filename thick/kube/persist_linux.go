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
// the last error of ask.
func (p *Pods) persist(ctx context.Context, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, p.timeout, fmt.Errorf("no answer within %v: %w", p.timeout, context.DeadlineExceeded))
	defer cancel()
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		err := ask(ctx)
		if err == nil || !isTransient(err) {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("%w (%w)", err, context.Cause(ctx))
		}
	}
}

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
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		details = fmt.Sprintf("the daemon's service account needs the verb %s on %s", verb, resource)
	}
	return types.NewError(types.ErrTryAgainLater, text, details)
}
