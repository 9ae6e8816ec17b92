package testhost

import (
	"context"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
)

// SetUp is a Setup for [Begin] and [expect.Soon].
func SetUp(ctx context.Context, r *cni.Runtime, id, path string, opts ...cni.NamespaceOpts) func() error {
	return func() error {
		_, err := r.Setup(ctx, id, path, opts...)
		return err
	}
}

var OnNet, OnTwo = cni.WithNetwork("net"), cni.WithNetwork("two")

// MustSetUp is a Setup that must succeed.
func MustSetUp(t testing.TB, r *cni.Runtime, id, path string, opts ...cni.NamespaceOpts) *cni.Result {
	t.Helper()
	return expect.Value(r.Setup(context.Background(), id, path, opts...))(t)
}
