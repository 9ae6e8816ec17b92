package behaviour_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
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

// blocked waits until n goroutines wait in a select of this function of the
// module, and returns the number of such goroutines.
func (s *stage) blocked(function string, n int) int {
	s.T.Helper()
	stacks := make([]byte, 16<<20)
	found := 0
	expect.Eventually(s.T, fmt.Sprintf("%d goroutines in %s", n, function), func() bool {
		found = strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "[select]:\ngithub.com/embedcni/cni"+function+"(")
		return found >= n
	})
	return found
}
