package behaviour_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/engine/leftovers"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/sandbox"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
)

// stage is a host for scripted plugins, with methods for this package's tests.
type stage struct{ *testhost.Stage }

func newStage(t *testing.T) *stage {
	t.Helper()
	return &stage{testhost.NewStage(t)}
}

// oneNetwork returns a stage with one network of these plugins, which r has loaded, and the
// path of container c1.
func oneNetwork(t *testing.T, types ...string) (s *stage, r *cni.Runtime, path string) {
	t.Helper()
	s = newStage(t)
	return s, s.Runtime(cni.WithConfListBytes(s.Network("net", "1.0.0", types...))), s.Container("c1")
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

// fails checks that there is an error, and that its text has these parts.
func fails(t testing.TB, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Error("no error")
		return
	}
	expect.Contains(t, "error", err.Error(), parts...)
}

// errOf returns the error of a call.
func errOf[T any](_ T, err error) error { return err }

// init reserves the leading thread for TestMain. A test on it that changed its
// network namespace would change the process's.
func init() { runtime.LockOSThread() }

// TestMain runs the tests in their own namespaces. It builds the reference
// plugins first, outside, where there is a network. Started by a test, the test
// binary is another runtime.
func TestMain(m *testing.M) {
	reapChildren()
	testhost.OtherRuntime(map[string]func(context.Context, *cni.Runtime, testhost.Job) error{
		"ADD WEB": addWeb, addChosen: addWithChosen, readyWithoutNFTables: askWithoutNFTables, withoutNetNS: makeNoNetNS, replaceVerb: replaceMain,
		"LIFE": life, daemonVerb: daemonMain, restartVerb + "ADD": restartMain, restartVerb + "RECOVER": restartMain,
	})
	if os.Getenv(listenEnv) != "" {
		listenMain()
	}
	if os.Getenv(sevenEnv) != "" {
		sevenMain()
	}
	leftovers.EndWithin = time.Minute // a busy machine's kernel takes its time
	os.Exit(refplugins.Main(m, refplugins.WithScripted(), refplugins.WithFlannel(), sandbox.Shards(4)))
}

// blocked waits until n goroutines wait in a select of this function of the
// module, and returns the number of such goroutines.
func (s *stage) blocked(function string, n int) int {
	s.T.Helper()
	waiting := regexp.MustCompile(`\[select\]:\ngithub\.com/embedcni/cni/\S*` + regexp.QuoteMeta(function) + `\(`)
	stacks := make([]byte, 16<<20)
	found := 0
	expect.Eventually(s.T, fmt.Sprintf("%d goroutines in %s", n, function), func() bool {
		found = len(waiting.FindAll(stacks[:runtime.Stack(stacks, true)], -1))
		return found >= n
	})
	return found
}

// wantRecover compares the report of Recover.
func wantRecover(t testing.TB, r *cni.Runtime, want cni.Report) {
	t.Helper()
	expect.Same(t, "report", *expect.Value(r.Recover(context.Background()))(t), want)
}

// children returns the living processes below this one, including orphans, because the
// sandbox makes it their parent.
func children(t testing.TB) []string {
	t.Helper()
	return expect.Value(audit.Processes())(t)
}

// write makes a file in the host's directory, and returns its path.
func write(h *testhost.Host, name, content string) string {
	h.T.Helper()
	path := h.Path(name)
	expect.NoError(h.T, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644))
	return path
}

// everything returns a network that leaves something in every place that plugins can.
func everything(last ...string) testhost.Case {
	return testhost.Case{Plugins: append([]string{
		testhost.BridgeConf(`"ipMasq": true, ` + testhost.HostLocal(testhost.V4Range+","+testhost.V6Range)),
		`{"type": "portmap", "snat": true, "capabilities": {"portMappings": true}}`,
		`{"type": "bandwidth", "ingressRate": 8000000, "ingressBurst": 8000000, "egressRate": 8000000, "egressBurst": 8000000}`,
		`{"type": "firewall", "backend": "iptables"}`,
	}, last...)}
}
