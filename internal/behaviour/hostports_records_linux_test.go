package behaviour_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/record"
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

// TestWhoseRecordsHoldAPort: those of every owner; not those of another host namespace or
// another boot.
func TestWhoseRecordsHoldAPort(t *testing.T) {
	s, runtime := portStage(t)
	foreign := runtime(cni.WithOwner("another program"))
	c1, c2 := s.Container("c1"), s.Container("c2")
	expect.NoError(t, testhost.SetUp(t.Context(), foreign, "c1", c1, web())())
	r := runtime()
	refused := func(what string) {
		t.Helper()
		err := testhost.SetUp(t.Context(), r, "c2", c2, web())()
		var e *cni.PortError
		if !errors.Is(err, cni.ErrPortInUse) || !errors.As(err, &e) || e.Owner != "another program" {
			t.Errorf("%s: %v", what, err)
		}
	}
	accepted := func(what string) {
		t.Helper()
		if err := testhost.SetUp(t.Context(), r, "c2", c2, web())(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		expect.NoError(t, r.Remove(t.Context(), "c2", c2))
	}
	refused("another owner's")

	boot := ""
	s.ChangeRecord("c1", func(rec *record.Record) { boot, rec.Boot = rec.Boot, "another" })
	accepted("of another boot")
	s.ChangeRecord("c1", func(rec *record.Record) { rec.Boot = boot })
	refused("of this boot")
	s.NewNetNS("elsewhere")
	elsewhere := runtime(cni.WithHostNetNS(s.Path("netns", "elsewhere")))
	expect.NoError(t, testhost.SetUp(t.Context(), elsewhere, "c3", s.Container("c3"), web())())
	refused("beside one of another host namespace")

	expect.NoError(t, foreign.Remove(t.Context(), "c1", c1))
	accepted("of another host namespace")
	expect.NoError(t, elsewhere.Remove(t.Context(), "c3", ""))
}

// TestADeadContainerHoldsItsPorts until it is removed: its rules still forward them.
// The same container takes them over.
func TestADeadContainerHoldsItsPorts(t *testing.T) {
	s, runtime := portStage(t, cni.WithoutReaping())
	r := runtime()
	expect.NoError(t, testhost.SetUp(t.Context(), r, "c1", s.Container("c1"), web())())
	s.RemoveNetNS("c1")
	c2 := s.Container("c2")
	err := testhost.SetUp(t.Context(), r, "c2", c2, web())()
	expect.Is(t, err, cni.ErrPortInUse)
	expect.NoError(t, testhost.SetUp(t.Context(), r, "c1", s.Container("c1"), web())())
	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
	expect.NoError(t, testhost.SetUp(t.Context(), r, "c2", c2, web())())
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
	expect.NoError(t, testhost.SetUp(t.Context(), r, "c2", c2, web())())
	expect.Is(t, testhost.SetUp(t.Context(), r, "c1", c1, mapped(mapping("tcp", "", 8080), mapping("tcp", "", 8081)))(), cni.ErrPortInUse)
	expect.NoError(t, testhost.SetUp(t.Context(), r, "c1", c1, mapped(mapping("tcp", "", 8081)))())
	expect.Same(t, "recorded", testhost.Recorded(t, r), []string{"c1/eth0 attached", "c2/eth0 attached"})
}

// TestOfManySetupsAtOnceOneGetsThePort: the others are refused, and all get it in turn.
func TestOfManySetupsAtOnceOneGetsThePort(t *testing.T) {
	s, runtime := portStage(t)
	const n = 12
	var paths []string
	for i := range n {
		paths = append(paths, s.Container(fmt.Sprint("c", i)))
	}
	for range 10 {
		runtimes := []*cni.Runtime{runtime(), runtime(cni.WithOwner("another program"))}
		errs := make([]error, n)
		_ = testhost.InParallel(n, func(i int) error {
			errs[i] = testhost.SetUp(t.Context(), runtimes[i%2], fmt.Sprint("c", i), paths[i], web(), cni.WithArgs("N", fmt.Sprint(i)))()
			return nil
		})
		attached := -1
		for i, err := range errs {
			switch {
			case err == nil && attached >= 0:
				t.Errorf("c%d and c%d have the port", attached, i)
			case err == nil:
				attached = i
			default:
				expect.Is(t, err, cni.ErrPortInUse)
			}
		}
		if attached < 0 {
			t.Fatalf("nobody has the port: %v", errs)
		}
		expect.NoError(t, runtimes[attached%2].Remove(t.Context(), fmt.Sprint("c", attached), ""))
	}
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

// TestAPortRangeIsOneContainers: a thousand ports in one Setup.
func TestAPortRangeIsOneContainers(t *testing.T) {
	s, runtime := portStage(t)
	r := runtime()
	var all []cni.PortMapping
	for i := range int32(1_000) {
		all = append(all, mapping("udp", "", 10_000+i))
	}
	expect.NoError(t, testhost.SetUp(t.Context(), r, "c1", s.Container("c1"), mapped(all...))())
	c2 := s.Container("c2")
	for port, want := range map[int32]error{9_999: nil, 10_000: cni.ErrPortInUse, 10_999: cni.ErrPortInUse, 11_000: nil} {
		if err := testhost.SetUp(t.Context(), r, "c2", c2, mapped(mapping("udp", "", port)))(); !errors.Is(err, want) {
			t.Errorf("port %d: %v", port, err)
		}
		expect.NoError(t, r.Remove(t.Context(), "c2", c2))
	}
}

// BenchmarkSetupWithAPort beside containers with a port each, and without one.
func BenchmarkSetupWithAPort(b *testing.B) {
	for _, others := range []int{10, 1_000, 3_000} {
		for _, opts := range [][]cni.NamespaceOpts{nil, {web()}} {
			b.Run(fmt.Sprintf("%d others, %d options", others, len(opts)), func(b *testing.B) {
				h := newRealHost(b)
				r := h.Runtime(h.portNetwork("one", "81", portBackends()[0]), cni.WithoutReaping())
				c1 := h.Container("c1")
				_, err := r.Setup(b.Context(), "c1", c1, web())
				expect.NoError(b, err)
				model, err := h.Records().Load("c1")
				expect.NoError(b, err)
				expect.NoError(b, r.Remove(b.Context(), "c1", c1))
				for i := range others {
					rec := *model
					rec.ContainerID, rec.Generation = record.ID(fmt.Sprint("other", i)), 0
					rec.Attachments = []record.Attachment{model.Attachments[0]}
					rec.Attachments[0].Capabilities = map[string]json.RawMessage{
						"portMappings": fmt.Appendf(nil, `[{"hostPort":%d,"containerPort":80,"protocol":"tcp"}]`, 20_000+i)}
					expect.NoError(b, h.Records().Begin(&rec))
				}
				_, err = r.Setup(b.Context(), "c1", c1, opts...)
				expect.NoError(b, err)
				expect.NoError(b, r.Remove(b.Context(), "c1", c1))
				var took []time.Duration
				for b.Loop() {
					begun := time.Now()
					_, err := r.Setup(b.Context(), "c1", c1, opts...)
					took = append(took, time.Since(begun))
					expect.NoError(b, err)
					expect.NoError(b, r.Remove(b.Context(), "c1", c1))
				}
				slices.Sort(took) // on a busy machine the mean shows the others
				b.ReportMetric(float64(took[len(took)/10].Microseconds()), "µs/Setup-p10")
				b.ReportMetric(float64(took[len(took)/2].Microseconds()), "µs/Setup-p50")
			})
		}
	}
}

// BenchmarkSetupWithManyPorts publishes 206 ports beside 150 containers with 32 each.
func BenchmarkSetupWithManyPorts(b *testing.B) {
	const others, each, own = 150, 32, 206
	published := func(first, n int) (all []cni.PortMapping) {
		for i := range n {
			all = append(all, cni.PortMapping{HostPort: int32(first + i), ContainerPort: 80, Protocol: "tcp"})
		}
		return all
	}
	h := newRealHost(b)
	r := h.Runtime(h.portNetwork("one", "81", portBackends()[0]), cni.WithBuiltinPlugins(), cni.WithoutReaping())
	for i := range others {
		id := fmt.Sprint("other", i)
		_, err := r.Setup(b.Context(), id, h.Container(id), cni.WithCapabilityPortMap(published(20_000+each*i, each)))
		expect.NoError(b, err)
	}
	path := h.Container("c1")
	var took []time.Duration
	for b.Loop() {
		begun := time.Now()
		_, err := r.Setup(b.Context(), "c1", path, cni.WithCapabilityPortMap(published(8_000, own)))
		took = append(took, time.Since(begun))
		expect.NoError(b, err)
		expect.NoError(b, r.Remove(b.Context(), "c1", path))
	}
	slices.Sort(took) // on a busy machine the mean shows the others
	b.ReportMetric(float64(took[0].Microseconds()), "µs/Setup-min")
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "µs/Setup-p50")
}
