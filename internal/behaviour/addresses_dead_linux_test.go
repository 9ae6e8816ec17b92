package behaviour_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
)

// TestFault_F52_AFailingSetupTakesDownAnLoThatWasUp: an lo that was up before
// the Setup belongs to a process in the namespace. Neither a failed Setup nor a
// Remove sets it down. An lo that was down is set down again.
func TestFault_F52_AFailingSetupTakesDownAnLoThatWasUp(t *testing.T) {
	for kind, opts := range map[string][]cni.Opt{
		"built in":   {cni.WithBuiltinPlugins("loopback")},
		"executable": {nil},
	} {
		for _, up := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, up %t", kind, up), func(t *testing.T) {
				s := newStage(t)
				if kind == "executable" {
					opts[0] = cni.WithPluginDir([]string{s.Path("bin"), testhost.ReferencePlugins(t)})
				}
				lo := []byte(`{"cniVersion": "1.0.0", "name": "lo", "plugins": [{"type": "loopback"}]}`)
				open := func() *cni.Runtime {
					return s.Runtime(append(slices.Clone(opts), cni.WithOwner("tester"), cni.WithConfListBytes(lo), cni.WithConfListBytes(s.Network("own", "1.0.0", "p")))...)
				}
				path := s.Container("c1")
				if up {
					s.Change(path, "lo", (*netlink.Handle).LinkSetUp)
				}
				want := func(when string, up bool) {
					t.Helper()
					expect.Same(t, when+": lo is up", s.Link(path, "lo").Attrs().RawFlags&1 != 0, up)
				}
				ctx, r := context.Background(), open()

				s.On("p", "ADD", testhost.Says(100, "refused"))
				fails(t, errOf(r.SetupSerially(ctx, "c1", path)))
				want("after a Setup that failed", up)

				s.On("p", "ADD", scripted.Action{})
				expect.Value(r.Setup(ctx, "c1", path))(t)
				want("attached", true)
				s.On("p", "DEL", testhost.Says(100, "refused"))
				fails(t, r.Remove(ctx, "c1", path))
				want("after a Remove that failed", up)
				s.On("p", "DEL", scripted.Action{})
				expect.NoError(t, open().Remove(ctx, "c1", path))
				want("after a Remove by the next runtime", up)
			})
		}
	}
}

// newManyPorts is a host with one container that has n ports, none of which leads
// anywhere: somebody has flushed all rules.
func newManyPorts(t *testing.T, n int) *guardedHost {
	t.Helper()
	h := newGuardedHost(t, false, "", 0)
	ports := make([]cni.PortMapping, n)
	for i := range ports {
		ports[i] = cni.PortMapping{HostPort: int32(8000 + i), ContainerPort: 80, Protocol: "tcp"}
	}
	path := h.Container("c0")
	testhost.MustSetUp(t, h.r, "c0", path, cni.WithCapabilityPortMap(ports))
	h.Serve(path, 80)
	h.ids = []string{"c0"}
	h.sh("nft flush ruleset")
	return h
}

// spent is the time that all CPUs have spent on this process and its children, which a
// busy machine does not lengthen.
func spent(t *testing.T) (sum time.Duration) {
	t.Helper()
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var used unix.Rusage
		expect.NoError(t, unix.Getrusage(who, &used))
		sum += time.Duration(used.Utime.Nano() + used.Stime.Nano())
	}
	return sum
}

// afterUserTime returns a channel that gets a signal when this process has spent so much
// more time in user mode.
func afterUserTime(t *testing.T, d time.Duration) <-chan os.Signal {
	t.Helper()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGVTALRM)
	t.Cleanup(func() { signal.Stop(signals) })
	expect.Value(unix.Setitimer(unix.ItimerVirtual, unix.Itimerval{Value: unix.NsecToTimeval(int64(d))}))(t)
	return signals
}

// TestFault_F69_FlushedPortsCostLinearTime: to judge and to repair four times as many
// ports takes about four times as long, not sixteen times.
func TestFault_F69_FlushedPortsCostLinearTime(t *testing.T) {
	const few, most, floor = 500, 9, 50 * time.Millisecond
	judged, repaired := make(map[int]time.Duration), make(map[int]time.Duration)
	for _, n := range []int{few, 4 * few} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			h := newManyPorts(t, n)
			begun := spent(t)
			health := expect.Value(h.r.Health(t.Context(), cni.HealthOptions{WithoutCheck: true}))(t)
			judged[n] = spent(t) - begun
			expect.Same(t, "differences: the ports and masquerading", len(health[0].Differences), n+1)
			begun = spent(t)
			report := expect.Value(h.r.Repair(t.Context(), "c0", cni.RepairOptions{}))(t)
			repaired[n] = spent(t) - begun
			expect.NoError(t, report.Err())
			expect.Same(t, "repaired", len(report.Repaired), n+1)
			h.back("repaired")
		})
	}
	for what, took := range map[string]map[int]time.Duration{"judge": judged, "repair": repaired} {
		t.Logf("to %s %d ports takes %v of CPU, %d ports %v", what, few, took[few], 4*few, took[4*few])
		if took[4*few] > most*max(took[few], floor) {
			t.Errorf("to %s four times as many ports takes %.1f times as long", what, float64(took[4*few])/float64(took[few]))
		}
	}
}

// TestFault_F69_HealthAndRepairEndWithTheirContext, whatever they have yet to do. The
// limit is CPU time: a process that waits for a busy machine is not late.
func TestFault_F69_HealthAndRepairEndWithTheirContext(t *testing.T) {
	const limit = 500 * time.Millisecond
	h := newManyPorts(t, 4000)
	for what, do := range map[string]func(context.Context) error{
		"Health": func(ctx context.Context) error { return errOf(h.r.Health(ctx, cni.HealthOptions{WithoutCheck: true})) },
		"Repair": func(ctx context.Context) error { return errOf(h.r.Repair(ctx, "c0", cni.RepairOptions{})) },
	} {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- do(ctx) }()
		select {
		case <-afterUserTime(t, 20*time.Millisecond): // it is under way
		case err := <-ended:
			ended <- err
		}
		begun, used := time.Now(), spent(t)
		cancel()
		err := <-ended
		expect.That(t, err == nil || errors.Is(err, context.Canceled), "%s: %v", what, err)
		used = spent(t) - used
		t.Logf("%s ends after %v, %v of CPU", what, time.Since(begun), used)
		expect.Within(t, what+" after its context has ended, in CPU time,", used, limit)
	}
	expect.Value(h.r.Repair(t.Context(), "c0", cni.RepairOptions{}))(t) // the rest
	h.back("repaired after all")
}
