package behaviour_test

import (
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
)

// stage is a host for scripted plugins, with methods for this package's tests.
type stage struct{ *testhost.Stage }

func newStage(t *testing.T) *stage {
	t.Helper()
	return &stage{testhost.NewStage(t)}
}

// heldUp begins a call, and waits until it is held up by a plugin's verb. letGo lets the plugin
// continue.
func (s *stage) heldUp(typ, verb string, call func() error) (done <-chan error, letGo func()) {
	s.T.Helper()
	gate := s.Gate(typ + verb)
	s.On(typ, verb, scripted.Action{Block: gate})
	done = testhost.Begin(call)
	return done, s.Arrive(gate)
}

// realHost is a host for the reference plugins, with methods for this package's
// tests.
type realHost struct{ *testhost.RealHost }

func newRealHost(t testing.TB) *realHost {
	t.Helper()
	return &realHost{testhost.NewReal(t)}
}

// says checks that there is an error, and that its text has these parts.
func says(t testing.TB, err error, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("error %v, want %q in it", err, part)
		}
	}
}

// errOf returns the error of a call.
func errOf[T any](_ T, err error) error { return err }
