package behaviour_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/plugin"
)

// portStage is a host with a registered plugin that takes ports and does nothing: only
// the records decide.
func portStage(t *testing.T, opts ...cni.Opt) (s *stage, runtime func(opts ...cni.Opt) *cni.Runtime) {
	t.Helper()
	s = newStage(t)
	conf := cni.WithConfListBytes([]byte(`{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "idle", "capabilities": {"portMappings": true}}]}`))
	return s, func(more ...cni.Opt) *cni.Runtime {
		return s.Runtime(append(append([]cni.Opt{conf, cni.WithPlugin("idle", testhost.Idle{})}, opts...), more...)...)
	}
}

func web() cni.NamespaceOpts { return mapped(mapping("tcp", "", 8080)) }

// TestADeadContainerHoldsItsPorts until it is removed: its rules still forward them.
// The same container takes them over.
func TestADeadContainerHoldsItsPorts(t *testing.T) {
	s, runtime := portStage(t, cni.WithoutReaping())
	r := runtime()
	testhost.MustSetUp(t, r, "c1", s.Container("c1"), web())
	s.RemoveNetNS("c1")
	c2 := s.Container("c2")
	expect.Is(t, testhost.SetUp(t.Context(), r, "c2", c2, web())(), cni.ErrPortInUse)
	testhost.MustSetUp(t, r, "c1", s.Container("c1"), web())
	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
	testhost.MustSetUp(t, r, "c2", c2, web())
}

// TestAFailedSetupGivesItsPortsBack, and one that was refused has none.
func TestAFailedSetupGivesItsPortsBack(t *testing.T) {
	s := newStage(t)
	fail := errors.New("no")
	failing := true
	p := testhost.Acting{On: map[string]testhost.Action{"ADD": func(context.Context, *plugin.Request) error {
		if failing {
			return fail
		}
		return nil
	}}}
	r := s.Runtime(cni.WithPlugin("p", p), cni.WithRetry(cni.Retry{Attempts: 3, Delay: time.Hour}),
		cni.WithConfListBytes([]byte(`{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "p", "capabilities": {"portMappings": true}}]}`)))
	c1, c2 := s.Container("c1"), s.Container("c2")
	expect.Is(t, testhost.SetUp(t.Context(), r, "c1", c1, web())(), fail)
	failing = false
	testhost.MustSetUp(t, r, "c2", c2, web())
	expect.Is(t, testhost.SetUp(t.Context(), r, "c1", c1, mapped(mapping("tcp", "", 8080), mapping("tcp", "", 8081)))(), cni.ErrPortInUse)
	testhost.MustSetUp(t, r, "c1", c1, mapped(mapping("tcp", "", 8081)))
	expect.Same(t, "recorded", testhost.Recorded(t, r), []string{"c1/eth0 attached", "c2/eth0 attached"})
}

// TestOfTwoProcessesOneGetsThePort: their plugins are executables.
func TestOfTwoProcessesOneGetsThePort(t *testing.T) {
	s := newStage(t)
	s.On("p", "ADD", gives("10.0.0.1/24"))
	s.Network("net", "1.0.0", "p")
	conf := fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "p", "script": %q, "capabilities": {"portMappings": true}}]}`, s.Path("script-p"))
	r := s.Runtime(cni.WithConfListBytes(conf))
	const n = 4
	var paths []string
	for i := range n {
		paths = append(paths, s.Container(fmt.Sprint("c", i)))
	}
	for range 5 {
		var done []<-chan string
		for i := range n {
			_, d := s.ProcessFor(testhost.Job{Verb: "ADD WEB", ID: fmt.Sprint("c", i), NetNS: paths[i], Conf: conf}, nil)
			done = append(done, d)
		}
		attached := ""
		for i, d := range done {
			out := expect.Await(t, "a process", d)
			switch {
			case out == "" && attached != "":
				t.Errorf("%s and c%d have the port", attached, i)
			case out == "":
				attached = fmt.Sprint("c", i)
			case out != "in use":
				t.Error(out)
			}
		}
		if attached == "" {
			t.Fatal("nobody has the port")
		}
		expect.NoError(t, r.Remove(t.Context(), attached, ""))
	}
}

// addWeb is a job for another process: a Setup with a port.
func addWeb(ctx context.Context, r *cni.Runtime, j testhost.Job) error {
	_, err := r.Setup(ctx, j.ID, j.NetNS, web())
	if errors.Is(err, cni.ErrPortInUse) {
		return errors.New("in use")
	}
	return err
}
