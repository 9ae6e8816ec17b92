package behaviour_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/engine/leftovers"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/store/lock"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

// deadHolder is a container with host port 8080 that has died, without a Remove.
func deadHolder(t *testing.T, b portBackend, opts ...cni.Opt) (h *realHost, r *cni.Runtime) {
	t.Helper()
	h = newRealHost(t)
	r = h.forwarding(b, append([]cni.Opt{h.portNetwork("net", "1", b), cni.WithBuiltinPlugins()}, opts...)...)
	dies(t, r, "c1", web())
	return h, r
}

// dies attaches a container that dies.
func dies(t *testing.T, r *cni.Runtime, id string, opts ...cni.NamespaceOpts) {
	t.Helper()
	path, kill := testhost.NewTask(t)
	testhost.MustSetUp(t, r, id, path, opts...)
	kill()
}

// impatient has a Setup wait no longer than it does in a program.
func impatient(t *testing.T) {
	before := leftovers.EndWithin
	leftovers.EndWithin = time.Second
	t.Cleanup(func() { leftovers.EndWithin = before })
}

// TestSetupTakesThePortOfADeadContainer, on every way of forwarding, and removes the dead
// one to the last line. It does so however often.
func TestSetupTakesThePortOfADeadContainer(t *testing.T) {
	for _, b := range portBackends() {
		t.Run(b.name, func(t *testing.T) {
			h, r := deadHolder(t, b)
			for i := range 3 {
				dies(t, r, fmt.Sprint("d", i), web())
			}
			path := h.Container("c2")
			testhost.MustSetUp(t, r, "c2", path, web())
			expect.Same(t, "on record", testhost.Recorded(t, r), []string{"c2/eth0 attached"})
			h.Serve(path, 80)
			alone := h.Audit()
			expect.NoError(t, r.Remove(t.Context(), "c2", path))
			testhost.MustSetUp(t, r, "c2", path, web())
			// Without the addresses and interfaces, of which each Setup has others.
			lines := func(all audit.Lines) int {
				return len(all.Without(func(l string) bool { return strings.Contains(l, "/attachments/") }))
			}
			expect.Same(t, "lines of a host with one container", lines(alone), lines(h.Audit()))
			expect.NoError(t, r.Remove(t.Context(), "c2", path))
		})
	}
}

// TestSetupTakesSeveralPortsOfTheDead: each port that it wants is another dead container's,
// and one of them has two, at addresses of their own.
func TestSetupTakesSeveralPortsOfTheDead(t *testing.T) {
	h := newRealHost(t)
	b := portBackends()[0]
	r := h.forwarding(b, h.portNetwork("net", "1", b), cni.WithBuiltinPlugins())
	dies(t, r, "c1", mapped(mapping("tcp", "127.0.0.1", 8080)))
	dies(t, r, "c2", mapped(mapping("tcp", "127.0.0.2", 8080)))
	dies(t, r, "c3", mapped(mapping("udp", "", 53)))
	testhost.MustSetUp(t, r, "c4", h.Container("c4"), mapped(mapping("tcp", "", 8080), mapping("udp", "", 53)))
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{"c4/eth0 attached"})
	expect.NoError(t, r.Remove(t.Context(), "c4", ""))
}

// TestSetupGoesOnWhereACrashLeftADeadContainer: a process was killed while it removed the
// container, or let go of its namespace.
func TestSetupGoesOnWhereACrashLeftADeadContainer(t *testing.T) {
	for what, change := range map[string]func(h *realHost, rec *record.Record){
		"a removal had begun": func(h *realHost, rec *record.Record) { rec.Attachments[0].State = record.Deleting },
		"a Setup had begun":   func(h *realHost, rec *record.Record) { rec.Attachments[0].State = record.Planned },
		"its namespace was let go": func(h *realHost, rec *record.Record) {
			rec.LetGo = &record.LetGo{}
		},
		"its namespace had ended": func(h *realHost, rec *record.Record) {
			rec.LetGo = &record.LetGo{}
			expect.NoError(h.T, netns.Remove(h.Pin("c1")))
		},
		"the machine's pins had ended": func(h *realHost, _ *record.Record) { expect.NoError(h.T, netns.Remove(h.Pin("c1"))) },
	} {
		t.Run(what, func(t *testing.T) {
			b := portBackends()[0]
			h, _ := deadHolder(t, b)
			h.ChangeRecord("c1", func(rec *record.Record) { change(h, rec) })
			next := h.forwarding(b, h.portNetwork("net", "1", b), cni.WithBuiltinPlugins())
			testhost.MustSetUp(t, next, "c2", h.Container("c2"), web())
			expect.Same(t, "on record", testhost.Recorded(t, next), []string{"c2/eth0 attached"})
			expect.NoError(t, next.Remove(t.Context(), "c2", ""))
		})
	}
}

// TestSetupLeavesAHolderThatIsNotItsToRemove: it is refused the port, and the holder has
// what it had.
func TestSetupLeavesAHolderThatIsNotItsToRemove(t *testing.T) {
	b := portBackends()[0]
	for what, keep := range map[string]func(t *testing.T, h *realHost, r *cni.Runtime) (then func()){
		"it lives": func(t *testing.T, h *realHost, r *cni.Runtime) func() {
			testhost.MustSetUp(t, r, "c1", h.Container("c1"), web())
			return func() { expect.NoError(t, r.Remove(t.Context(), "c1", "")) }
		},
		"a process is in it": func(t *testing.T, h *realHost, r *cni.Runtime) func() {
			path := h.Mortal("c1")
			testhost.MustSetUp(t, r, "c1", path, web())
			stop := inhabit(t, path)
			expect.NoError(t, netns.Remove(path))
			return stop
		},
		"it is another owner's": func(t *testing.T, h *realHost, _ *cni.Runtime) func() {
			foreign := h.forwarding(b, h.portNetwork("net", "1", b), cni.WithBuiltinPlugins(), cni.WithOwner("another program"))
			dies(t, foreign, "c1", web())
			return func() { expect.NoError(t, foreign.Remove(t.Context(), "c1", "")) }
		},
		"another owner has attached it too": func(t *testing.T, h *realHost, r *cni.Runtime) func() {
			dies(t, r, "c1", web())
			h.ChangeRecord("c1", func(rec *record.Record) {
				n := rec.Attachments[0]
				n.IfName, n.Owner = "eth9", "another program"
				rec.Attachments = append(rec.Attachments, n)
			})
			return func() { expect.NoError(t, r.Remove(t.Context(), "c1", "")) }
		},
		"another call has it": func(t *testing.T, h *realHost, r *cni.Runtime) func() {
			dies(t, r, "c1", web())
			held := expect.Value(lock.Open(h.Path("state", "embedcni", "locks")).Lock(t.Context(), "container/c1"))(t)
			return func() { expect.NoError(t, held.Release()) }
		},
		"its record is of another mount namespace": func(t *testing.T, h *realHost, r *cni.Runtime) func() {
			dies(t, r, "c1", web())
			view := ""
			h.ChangeRecord("c1", func(rec *record.Record) { view, rec.NetNS.View = rec.NetNS.View, "another" })
			return func() { h.ChangeRecord("c1", func(rec *record.Record) { rec.NetNS.View = view }) }
		},
	} {
		t.Run(what, func(t *testing.T) {
			impatient(t)
			h := newRealHost(t)
			r := h.forwarding(b, h.portNetwork("net", "1", b), cni.WithBuiltinPlugins())
			then := keep(t, h, r)
			before := testhost.Recorded(t, r)
			path := h.Container("c2")
			begun := time.Now()
			_, err := r.Setup(t.Context(), "c2", path, web())
			expect.Is(t, err, cni.ErrPortInUse)
			expect.Within(t, "Setup", time.Since(begun), expect.Patience/2)
			expect.Same(t, "on record", testhost.Recorded(t, r), before)
			then()
			expect.Eventually(t, "the port", func() bool {
				_, err = r.Setup(t.Context(), "c2", path, web())
				return err == nil
			})
			expect.NoError(t, r.Remove(t.Context(), "c2", path))
		})
	}
}

// TestSetupWaitsForNoPluginOfADeadContainer: the DEL of one that has the port hangs. Setup
// is refused the port soon, and gets it when the DEL was given up.
func TestSetupWaitsForNoPluginOfADeadContainer(t *testing.T) {
	b := portBackends()[2] // executables
	impatient(t)
	h := newRealHost(t)
	h.linkPlugins()
	r := h.Runtime(h.portNetwork("net", "1", b), cni.WithPluginDir([]string{h.Path("bin")}), cni.WithTimeouts(cni.Timeouts{Del: 15 * time.Second}))
	dies(t, r, "c1", web())
	expect.NoError(t, os.Remove(h.Path("bin", "portmap")))
	write(h.Host, "bin/portmap", "#!/bin/sh\n[ $CNI_COMMAND != DEL ] || exec sleep 600\nexec "+filepath.Join(testhost.ReferencePlugins(t), "portmap")+"\n")
	expect.NoError(t, os.Chmod(h.Path("bin", "portmap"), 0o755))
	path := h.Container("c2")
	begun := time.Now()
	_, err := r.Setup(t.Context(), "c2", path, web())
	expect.Is(t, err, cni.ErrPortInUse)
	expect.Within(t, "Setup", time.Since(begun), 12*time.Second)
	expect.Eventually(t, "the port", func() bool {
		_, err = r.Setup(t.Context(), "c2", path, web())
		return err == nil
	})
	expect.NoError(t, r.Remove(t.Context(), "c2", path))
}

// TestSetupsThatWantEachOthersPortsOfTheDead: each is set up again with the port that the
// other's predecessor has. None waits for another for ever, and each gets its port.
func TestSetupsThatWantEachOthersPortsOfTheDead(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	h := newRealHost(t)
	b := portBackends()[0]
	r := h.forwarding(b, h.portNetwork("net", "1", b), cni.WithBuiltinPlugins(), cni.WithHostNetNS(h.Path("netns", "host")))
	const n = 4
	port := func(i int) cni.NamespaceOpts { return mapped(mapping("tcp", "", int32(8080+i))) }
	for round := range 5 {
		var paths []string
		for i := range n {
			dies(t, r, fmt.Sprint("c", i), port(i))
			paths = append(paths, h.Container(fmt.Sprintf("round%d-%d", round, i)))
		}
		wants := random.Perm(n)
		err := testhost.InParallel(n, func(i int) error { return errOf(r.Setup(t.Context(), fmt.Sprint("c", i), paths[i], port(wants[i]))) })
		expect.NoError(t, err)
		for i := range n {
			expect.NoError(t, r.Remove(t.Context(), fmt.Sprint("c", i), ""))
		}
		expect.Same(t, "on record", testhost.Recorded(t, r), []string{})
	}
}

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
		expect.Must(t, attached != "", "nobody has the port")
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

// byLibcni attaches a container as a program does that uses libcni directly, in the state
// directory of the library. It returns the function that detaches it.
func (h *realHost) byLibcni(id, path string, port int) (detach func()) {
	h.T.Helper()
	list, err := libcni.ConfListFromBytes(fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "theirs", "plugins": [
		{"type": "bridge", "bridge": "br-theirs", "isGateway": true, "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.9.0.0/24"}]]}},
		{"type": "portmap", "backend": "iptables", "capabilities": {"portMappings": true}}]}`, h.Path("ipam")))
	expect.NoError(h.T, err)
	c := libcni.NewCNIConfigWithCacheDir([]string{testhost.ReferencePlugins(h.T)}, h.Path("state"), nil)
	rt := &libcni.RuntimeConf{ContainerID: id, NetNS: path, IfName: "eth0", CapabilityArgs: map[string]any{
		"portMappings": []map[string]any{{"hostPort": port, "containerPort": 80, "protocol": "tcp"}},
	}}
	expect.Value(c.AddNetworkList(h.T.Context(), list, rt))(h.T)
	return func() { expect.NoError(h.T, c.DelNetworkList(h.T.Context(), list, rt)) }
}

// TestAContainerOfAnotherProgramHasAPort: it is only in libcni's cache. While it lives, its
// port is refused. Then its rules may still forward it, of which Setup warns.
func TestAContainerOfAnotherProgramHasAPort(t *testing.T) {
	b := portBackends()[0]
	h := newRealHost(t)
	theirs := h.Mortal("theirs")
	detach := h.byLibcni("theirs", theirs, 8080)
	opts := []cni.Opt{h.portNetwork("net", "1", b), cni.WithBuiltinPlugins()}
	r, strict := h.forwarding(b, opts...), h.forwarding(b, append(opts, cni.WithStrictPorts())...)
	path := h.Container("c1")
	for _, r := range []*cni.Runtime{r, strict} {
		_, err := r.Setup(t.Context(), "c1", path, web())
		var e *cni.PortError
		expect.That(t, errors.Is(err, cni.ErrPortInUse) && errors.As(err, &e) && e.ContainerID == "theirs" && e.Network == "theirs" && e.IfName == "eth0",
			"beside a living container: %v", err)
	}
	testhost.MustSetUp(t, r, "c1", path, mapped(mapping("tcp", "", 8081)))
	expect.NoError(t, r.Remove(t.Context(), "c1", path))

	expect.NoError(t, netns.Remove(theirs))
	expect.Is(t, errOf(strict.Setup(t.Context(), "c1", path, web())), cni.ErrPortInUse)
	result := testhost.MustSetUp(t, r, "c1", path, web())
	expect.That(t, len(result.PortWarnings) == 1 && result.PortWarnings[0].ContainerID == "theirs",
		"beside a dead container: warnings %v", result.PortWarnings)
	expect.NoError(t, r.Remove(t.Context(), "c1", path))
	detach()
	testhost.MustSetUp(t, strict, "c1", path, web())
	expect.NoError(t, r.Remove(t.Context(), "c1", path))
}

// TestOwnContainersInTheCacheAreNotAnothers: libcni's cache has them too, also under the ID
// of a pool of an earlier version.
func TestOwnContainersInTheCacheAreNotAnothers(t *testing.T) {
	h := newRealHost(t)
	b := portBackends()[0]
	r := h.forwarding(b, h.portNetwork("net", "1", b), cni.WithBuiltinPlugins())
	for id, attach := range map[string]func() error{
		"c1": testhost.SetUp(t.Context(), r, "c1", h.Container("c1"), web()),
		"c2": func() error { pooled(h.Host, r, "warm-2", "c2", web()); return nil },
	} {
		expect.NoError(t, attach())
		_, err := r.Setup(t.Context(), "c3", h.Container("at-"+id), web())
		var e *cni.PortError
		expect.That(t, errors.As(err, &e) && e.ContainerID == id && e.Owner != "", "beside %s: %v", id, err)
		expect.NoError(t, r.Remove(t.Context(), id, ""))
	}
}
