package cni_test

import (
	"testing"

	"github.com/embedcni/cni/internal/testhost"
)

// realHost is a host for the reference plugins, with methods for this package's
// tests.
type realHost struct{ *testhost.RealHost }

func newRealHost(t testing.TB) *realHost {
	t.Helper()
	return &realHost{testhost.NewReal(t)}
}
