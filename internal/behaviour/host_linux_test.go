package behaviour_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// elsewhereHost returns a Runtime whose plugins run in another namespace than
// those that attached c1 of [inhabited].
func elsewhereHost(t *testing.T) (s *stage, there *cni.Runtime, conf []byte) {
	t.Helper()
	s, _, conf = inhabited(t, "c1")
	s.NewNetNS("elsewhere")
	return s, s.restarted(conf, cni.WithHostNetNS(s.Path("netns", "elsewhere"))), conf
}

// TestFault_F38_ACallFromAnotherHostNamespaceEntersTheRecorded: by the recorded
// path, or through a process, a mount or a descriptor if that path now leads
// elsewhere.
func TestFault_F38_ACallFromAnotherHostNamespaceEntersTheRecorded(t *testing.T) {
	calls := map[string]func(t *testing.T, s *stage, r *cni.Runtime) error{
		"Check": func(t *testing.T, s *stage, r *cni.Runtime) error {
			return r.Check(t.Context(), "c1", s.Path("netns", "c1"))
		},
		"Recover": func(t *testing.T, s *stage, r *cni.Runtime) error {
			wantRecover(t, r, adopted)
			return nil
		},
		"GC": func(t *testing.T, s *stage, r *cni.Runtime) error {
			expect.NoError(t, r.Load()) // does not call plugins' GC
			report, err := r.GC(t.Context(), cni.GCOptions{KeepNone: true})
			expect.Same(t, "report", *report, removed)
			return err
		},
		"Remove": func(t *testing.T, s *stage, r *cni.Runtime) error { return r.Remove(t.Context(), "c1", "") },
	}
	for _, found := range []string{"by its path", "by a descriptor"} {
		for what, call := range calls {
			t.Run(what+" "+found, func(t *testing.T) {
				s, there, _ := elsewhereHost(t)
				host := netNo(s.Host, "host")
				s.ChangeRecord("c1", func(rec *record.Record) {
					expect.Same(t, "path on record", rec.HostPath, s.Path("netns", "host"))
					if found != "by its path" {
						rec.HostPath = s.Path("netns", "elsewhere")
					}
				})
				expect.NoError(t, call(t, s, there))
				took := s.TakeCalls()
				expect.Same(t, "a plugin was run", len(took) > 0, true)
				for _, c := range took {
					expect.Same(t, c.Verb+" ran in", c.NetNo, host)
				}
			})
		}
	}
}

// netNo returns the namespace as a process in it sees it: "net:[4026532231]".
func netNo(h *testhost.Host, name string) string {
	h.T.Helper()
	ns := expect.Value(netns.Open(h.Path("netns", name)))(h.T)
	expect.NoError(h.T, ns.Close())
	_, number, _ := strings.Cut(ns.ID().String(), ":")
	return "net:[" + number + "]"
}

// TestFault_F38_AnUnreachableHostNamespaceIsRefused: Recover and GC leave the
// container alone, because it may still run there.
func TestFault_F38_AnUnreachableHostNamespaceIsRefused(t *testing.T) {
	s, there, conf := elsewhereHost(t)
	s.ChangeRecord("c1", func(rec *record.Record) {
		rec.Host, rec.HostPath, rec.PIDNS = "4:99", "/run/detached/netns", 1 // of processes that are invisible here
	})
	path := s.Path("netns", "c1")
	for _, err := range map[string]error{
		"Remove": there.Remove(t.Context(), "c1", path),
		"Check":  there.Check(t.Context(), "c1", path),
		"Setup":  testhost.SetUp(t.Context(), there, "c1", path, cni.WithNetwork("net", cni.WithInterfaceName("eth7")))(),
	} {
		expect.Is(t, err, cni.ErrHostNetNS)
		for _, named := range []string{"4:99 (/run/detached/netns)", s.Path("netns", "elsewhere"), "WithHostNetNS"} {
			fails(t, err, named)
		}
	}
	for what, call := range map[string]func() (*cni.Report, error){
		"Recover": func() (*cni.Report, error) { return there.Recover(t.Context()) },
		"GC": func() (*cni.Report, error) {
			expect.NoError(t, there.Load())
			return there.GC(t.Context(), cni.GCOptions{KeepNone: true})
		},
	} {
		report := expect.Value(call())(t)
		expect.Is(t, report.Skipped["c1"], cni.ErrHostNetNS)
		expect.Same(t, what+": report", *report, cni.Report{Skipped: map[string]error{"c1": report.Skipped["c1"]}})
	}
	expect.Same(t, "calls", s.Took(), []string{})
	expect.Same(t, "on record", testhost.Recorded(t, s.restarted(conf)), []string{"c1/eth0 attached"})
	expect.Same(t, "kept", s.Pinned("c1"), true)
}

// TestFault_F38_AContainerIsNotAddedToFromAnotherHostNamespace: its record
// already names one.
func TestFault_F38_AContainerIsNotAddedToFromAnotherHostNamespace(t *testing.T) {
	s, there, _ := elsewhereHost(t)
	err := testhost.SetUp(t.Context(), there, "c1", s.Path("netns", "c1"), cni.WithNetwork("net", cni.WithInterfaceName("eth7")))()
	expect.Is(t, err, cni.ErrHostNetNS)
	expect.Same(t, "calls", s.Took(), []string{})
}

// TestFault_F38_OfAHostNamespaceThatIsGoneOnlyFilesAreUndone: the caller's
// namespace has rules for the same address, which belong to a running
// container.
func TestFault_F38_OfAHostNamespaceThatIsGoneOnlyFilesAreUndone(t *testing.T) {
	h := newRealHost(t)
	list := func(ipam string) cni.Opt {
		return cni.WithConfListBytes(fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "podnet", "plugins": [
			{"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "ipMasqBackend": "nftables",
			 "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.88.0.0/24"}]]}},
			{"type": "firewall", "backend": "iptables"}]}`, h.Path(ipam)))
	}
	builtin, owner := cni.WithBuiltinPlugins(), cni.WithOwner("tester")
	here := h.Runtime(builtin, owner, list("ipam-here"))
	testhost.MustSetUp(t, here, "c2", h.Container("c2"))

	before := h.Audit()
	host, path := h.Path("netns", "detached"), h.Path("netns", "c1")
	for _, p := range []string{host, path} {
		expect.NoError(t, expect.Value(netns.Create(p))(t).Close())
	}
	// A search in the background would have the namespace open for a moment longer.
	there := h.Runtime(builtin, owner, list("ipam-there"), cni.WithHostNetNS(host), cni.WithoutReaping())
	testhost.MustSetUp(t, there, "c1", path)
	expect.Same(t, "address", addressOf(t, here, "c1"), addressOf(t, here, "c2"))
	expect.NoError(t, netns.Remove(host))

	// While the container lives, the host's namespace may live too.
	expect.Is(t, here.Remove(t.Context(), "c1", ""), cni.ErrHostNetNS)
	expect.NoError(t, netns.Remove(path))
	expect.NoError(t, netns.Remove(h.Pin("c1")))
	expect.Is(t, expect.Value(here.Recover(t.Context()))(t).Skipped["c1"], cni.ErrHostNetNS)
	expect.NoError(t, here.Remove(t.Context(), "c1", ""))
	expect.Same(t, "on record", testhost.Recorded(t, here), []string{"c2/eth0 attached"})
	expect.Same(t, "the address is held", expect.Exists(t, h.Path("ipam-there", "podnet", "10.88.0.2")), false)
	left, missing := h.Left(before)
	missing = missing.Without(func(l string) bool { return strings.Contains(l, h.Path("state", "embedcni")) })
	expect.Unchanged(t, "left", left, missing)
	expect.NoError(t, here.Check(t.Context(), "c2", h.Path("netns", "c2")))
	expect.NoError(t, here.Remove(t.Context(), "c2", ""))
}

func addressOf(t testing.TB, r *cni.Runtime, id string) string {
	t.Helper()
	return expect.Value(r.Lookup(id))(t).IPv4().Prefix.String()
}

// soon is much longer than a call waits for orphans, and much less than it
// waits for a running runtime.
const soon = 30 * time.Second

// neighbour attaches another container in another process, which waits at a
// gate. through opens the gate and checks that the call succeeds.
func (s *stage) neighbour() (through func()) {
	s.T.Helper()
	gate := s.Gate("neighbour")
	s.On("n", "ADD", scripted.Action{Block: gate})
	done := s.Elsewhere(s.Network("neighbours", "1.0.0", "n"), "ADD", "c2", s.Container("c2"))
	letGo := s.Arrive(gate)
	return func() {
		s.T.Helper()
		letGo()
		expect.Same(s.T, "the neighbour", expect.Await(s.T, "the neighbour", done), "")
	}
}

// promptly checks that f returns nil soon, but not before plugins that end by
// themselves had their time.
func promptly(t *testing.T, what string, f func() error) {
	t.Helper()
	start := time.Now()
	expect.NoError(t, expect.Await(t, what, testhost.Begin(f)))
	took := time.Since(start)
	expect.That(t, took <= soon && took >= time.Second, "%s took %v", what, took)
}

// TestFault_F30_NoCallWaitsLongForADeadRuntimesPlugin: the next call does
// not wait long, whichever it is, in a process that never calls Recover.
func TestFault_F30_NoCallWaitsLongForADeadRuntimesPlugin(t *testing.T) {
	for what, call := range map[string]func(s *stage, r *cni.Runtime) error{
		"Remove": func(s *stage, r *cni.Runtime) error { return r.Remove(context.Background(), "c1", "") },
		"Setup": func(s *stage, r *cni.Runtime) error {
			s.On("p", "ADD", scripted.Action{})
			return testhost.SetUp(context.Background(), r, "c1", s.Path("netns", "c1"))()
		},
		"GC": func(s *stage, r *cni.Runtime) error {
			return errOf(r.GC(context.Background(), cni.GCOptions{KeepNone: true}))
		},
		"Recover": func(s *stage, r *cni.Runtime) error {
			report, err := r.Recover(context.Background())
			expect.Same(s.T, "removed", report.Removed, []string{"c1"})
			return err
		},
		"CleanUp": func(s *stage, r *cni.Runtime) error {
			_, err := r.CleanUp(context.Background(), cni.CleanUpTarget{ContainerID: "c1", Network: "net", IfName: "eth0"})
			return err
		},
		"Remove of a damaged record": func(s *stage, r *cni.Runtime) error {
			spoilBase(s.Host, "c1", "{")
			return r.Remove(context.Background(), "c1", "")
		},
	} {
		t.Run(what, func(t *testing.T) {
			s, r, letGo := killedRuntime(t, scripted.Action{Hang: true, Fork: true})
			letGo()
			through := func() {}
			if what != "GC" { // which also waits for the neighbour
				through = s.neighbour()
			}
			promptly(t, what, func() error { return call(s, r) })
			if what != "Setup" {
				expect.Same(t, "of c1 on record", slices.DeleteFunc(testhost.Recorded(t, r), func(line string) bool {
					return !strings.HasPrefix(line, "c1/")
				}), []string{})
			}
			through()
			expect.Same(t, "processes", children(t), nil)
		})
	}
}

// TestNobodyEndsThePluginsOfARuntimeThatLives, whatever the record says. A
// CHECK writes no record, so the record may name a dead runtime. A damaged
// record names none.
func TestNobodyEndsThePluginsOfARuntimeThatLives(t *testing.T) {
	for what, spoil := range map[string]func(*stage){
		"the record names another":    func(*stage) {},
		"the record is damaged":       func(s *stage) { spoilBase(s.Host, "c1", "{") },
		"it is of an earlier version": func(s *stage) { expect.NoError(s.T, os.Remove(s.Path("state", "embedcni", "alive"))) },
		"of an earlier one and damaged": func(s *stage) {
			spoilBase(s.Host, "c1", "{")
			expect.NoError(s.T, os.Remove(s.Path("state", "embedcni", "alive")))
		},
	} {
		t.Run(what, func(t *testing.T) {
			s := newStage(t)
			conf := s.Network("net", "1.0.0", "p", "q")
			path := s.Container("c1")
			expect.Same(t, "Setup", expect.Await(t, "Setup", s.Elsewhere(conf, "ADD", "c1", path)), "")
			gate := s.Gate("check")
			s.On("p", "CHECK", scripted.Action{Block: gate})
			checking := s.Elsewhere(conf, "CHECK", "c1", path)
			letGo := s.Arrive(gate)
			spoil(s)
			r := s.Runtime(cni.WithConfListBytes(conf))
			removing := testhost.Begin(func() error { return r.Remove(t.Context(), "c1", "") })
			report := expect.Value(r.Recover(t.Context()))(t) // which checks as often as Remove
			expect.Is(t, report.Skipped["c1"], cni.ErrBusy)
			letGo()
			expect.Same(t, "CHECK", expect.Await(t, "CHECK", checking), "")
			expect.NoError(t, expect.Await(t, "Remove", removing))
		})
	}
}

// TestFault_F59_RecoverDoesNotWaitForAStoppedProcess of its owner, even if that
// process holds many containers' locks, and others are examined meanwhile.
func TestFault_F59_RecoverDoesNotWaitForAStoppedProcess(t *testing.T) {
	s := newStage(t)
	conf := s.Network("net", "1.0.0", "p")
	r := s.Runtime(cni.WithConfListBytes(conf)) // the same owner as the other process
	testhost.MustSetUp(t, r, "c2", s.Container("c2"))
	s.AddLink("c2", "eth0")
	gate := s.Gate("p")
	s.On("p", "ADD", scripted.Action{Block: gate})
	process, done := s.ProcessFor(testhost.Job{Verb: "ADD", ID: "c1", NetNS: s.Container("c1"), Conf: conf}, nil)
	letGo := s.Arrive(gate)
	expect.NoError(t, process.Signal(syscall.SIGSTOP))
	var status syscall.WaitStatus
	expect.Value(syscall.Wait4(process.Pid, &status, syscall.WUNTRACED, nil))(t) // until it has stopped
	promptly(t, "Recover", func() error {
		report, err := r.Recover(t.Context())
		expect.Same(t, "report", *report, cni.Report{Adopted: []string{"c2"}, Skipped: report.Skipped})
		expect.Is(t, report.Skipped["c1"], cni.ErrBusy)
		fails(t, report.Skipped["c1"], fmt.Sprintf("in process %d (", process.Pid), ", stopped)")
		return err
	})
	expect.NoError(t, process.Signal(syscall.SIGCONT))
	letGo()
	expect.Same(t, "Setup", expect.Await(t, "Setup", done), "")
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{"c1/eth0 attached", "c2/eth0 attached"})
}

// reapsEnv makes the test binary reap all its children.
const reapsEnv = "EMBEDCNI_TEST_REAPS"

func reapChildren() {
	switch os.Getenv(reapsEnv) {
	case "ignores SIGCHLD":
		signal.Ignore(syscall.SIGCHLD)
	case "waits for all":
		go func() {
			for { // without a child there is nothing to wait for
				if _, err := syscall.Wait4(-1, nil, 0, nil); err != nil {
					runtime.Gosched()
				}
			}
		}()
	}
}

// byReaper runs a verb in a process that reaps all its children. It returns the
// printed error, or nothing.
func (s *stage) byReaper(how, verb string, conf []byte, path string) string {
	s.T.Helper()
	cmd := testhost.Job{
		Verb: verb, ID: "c1", NetNS: path, Conf: conf,
		StateDir: s.Path("state"), PluginDir: s.Path("bin"), HostNetNS: s.Path("netns", "host"),
	}.Command(s.T)
	cmd.Env = append(cmd.Env, reapsEnv+"="+how)
	return string(expect.Value(cmd.CombinedOutput())(s.T))
}

// TestFault_F52_AReapedPluginIsJudgedByItsResult: a program that reaps all its
// children takes the plugins' exit status. An ADD then counts by its result, a
// DEL if the sweep covers the plugin, a CHECK never.
func TestFault_F52_AReapedPluginIsJudgedByItsResult(t *testing.T) {
	const lost = "its exit status is lost"
	for _, how := range []string{"ignores SIGCHLD", "waits for all"} {
		t.Run(how, func(t *testing.T) {
			s := newStage(t)
			swept, other := s.Network("net", "1.0.0", "portmap"), s.Network("net", "1.0.0", "p")
			path := s.Container("c1")
			expect.Same(t, "ADD", s.byReaper(how, "ADD", swept, path), "")
			said := s.byReaper(how, "CHECK", swept, path)
			expect.That(t, how != "ignores SIGCHLD" || strings.Contains(said, lost), "CHECK: %q", said)
			expect.Same(t, "DEL of a plugin that the sweep covers", s.byReaper(how, "DEL", swept, path), "")

			s.On("portmap", "ADD", testhost.Says(7, "no"))
			expect.Contains(t, "an ADD that fails", s.byReaper(how, "ADD", swept, path), "no (code 7)")
			half := `{"cniVersion": "1.0.0", "ips": [{"address": "10.1.`
			s.On("portmap", "ADD", scripted.Action{Stdout: &half})
			expect.Same(t, "half a result counts", s.byReaper(how, "ADD", swept, path) == "", false)

			expect.Same(t, "ADD of another plugin", s.byReaper(how, "ADD", other, path), "")
			said = s.byReaper(how, "DEL", other, path)
			expect.That(t, how != "ignores SIGCHLD" || strings.Contains(said, lost), "DEL of another plugin: %q", said)
			expect.NoError(t, s.Runtime().Remove(t.Context(), "c1", path))
		})
	}
}
