package behaviour_test

import (
	"testing"

	"github.com/embedcni/cni/internal/testhost"
)

// stage is a host for scripted plugins, with methods for this package's tests.
type stage struct{ *testhost.Stage }

func newStage(t *testing.T) *stage {
	t.Helper()
	return &stage{testhost.NewStage(t)}
}

// realHost is a host for the reference plugins, with methods for this package's
// tests.
type realHost struct{ *testhost.RealHost }

func newRealHost(t testing.TB) *realHost {
	t.Helper()
	return &realHost{testhost.NewReal(t)}
}
