package behaviour_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

// TestFault_F13_RealDeadlineInTheMiddleOfAChain: a deadline kills a plugin at
// any point, together with its iptables. Nobody would find leftovers of that
// Setup, because the caller was told that the container is not attached (F13).
func TestFault_F13_RealDeadlineInTheMiddleOfAChain(t *testing.T) {
	testhost.WantProcessAsBefore(t)
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	whole := newRealHost(t).duration()
	t.Logf("seed %d; a whole Setup takes %v", seed, whole)
	t.Run("group", func(t *testing.T) {
		for round := range max(10, *stress) {
			// Every other round starts on a new host.
			warm := round%2 == 0
			deadline := time.Millisecond + time.Duration(random.Int64N(int64(whole)))
			t.Run(fmt.Sprintf("%d %v warm %v", round, deadline.Round(time.Millisecond), warm), func(t *testing.T) {
				t.Parallel()
				newRealHost(t).setUpUntil(deadline, warm)
			})
		}
	})
}

func (h *realHost) setUpUntil(deadline time.Duration, warm bool) {
	h.T.Helper()
	r := h.Real(cni.WithLoNetwork, cni.WithConfListBytes(h.deadlineList()))
	path := h.Container("c1")
	if warm {
		h.setUpAndRemove(r, path)
	}
	before := h.Audit()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	_, err := r.Setup(ctx, "c1", path, onePort)
	switch {
	case err == nil:
		h.T.Log("done in time")
		h.detach(r, "c1")
	case !errors.Is(err, context.DeadlineExceeded):
		h.T.Errorf("error %v is not that of the deadline", err)
	}
	h.wantCleanButForKilled(before)
	if err != nil && !warm {
		h.revive("cni0")
	}
	h.setUpAndRemove(r, path) // the host still works
	h.wantCleanButForKilled(before)
}

// killedLeaves reports whether a reference plugin leaves this line for good
// when it is killed at one particular moment. That is so rare that a test can
// neither require nor exclude it.
func killedLeaves(line string) bool {
	// host-local creates an address's file, then writes the owner into it. If
	// it is killed in between, the address has no owner and is never freed.
	return emptyReservation.MatchString(line)
}

var emptyReservation = regexp.MustCompile(`^file \S+/ipam/podnet/[0-9a-f.:]+ sha256:e3b0c44298fc1c14$`)

func (h *realHost) wantCleanButForKilled(before audit.Lines) {
	h.T.Helper()
	left, gone := h.Left(before)
	for _, l := range left {
		if killedLeaves(l) {
			h.T.Logf("left by a killed plugin: %s", l)
		}
	}
	expect.Unchanged(h.T, "host", left.Without(killedLeaves), gone)
}

// revive gives a bridge a hardware address if it has none, see
// TestRealBridgeFailsAgainAfterItsFirstAddFailed.
func (h *realHost) revive(bridge string) {
	h.T.Helper()
	link, err := netlink.LinkByName(bridge)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return
	}
	expect.NoError(h.T, err)
	if len(link.Attrs().HardwareAddr) == 0 { // netlink's form of zeros
		h.T.Log("the bridge has lost its hardware address")
		expect.NoError(h.T, netlink.LinkSetHardwareAddr(link, net.HardwareAddr{0x0a, 0x58, 0, 0, 0, 1}))
	}
}

// TestRealBridgeFailsAgainAfterItsFirstAddFailed: a bridge whose first ADD
// failed before the address was set loses its hardware address with its last
// port. The next ADD, by any runtime, sets the empty hardware address that it
// has read, and the kernel refuses it. The ADD after that succeeds, because the
// bridge has its address by then.
func TestRealBridgeFailsAgainAfterItsFirstAddFailed(t *testing.T) {
	h := newRealHost(t)
	bad := testhost.Case{Plugins: []string{testhost.BridgeConf(testhost.HostLocal(`[{"subnet": "10.77.0.0/24", "gateway": "nonsense"}]`))}}
	good := testhost.Case{Plugins: []string{testhost.BridgeConf(testhost.HostLocal(testhost.V4Range))}}
	path := h.Container("c1")
	first := h.Real(cni.WithConfListBytes(bad.Conf("podnet", "1.0.0", h.Path("ipam"))))
	then := h.Real(cni.WithConfListBytes(good.Conf("podnet", "1.0.0", h.Path("ipam"))))
	before := h.Audit()
	if _, err := first.Setup(context.Background(), "c1", path); err == nil {
		t.Fatal("Setup with an invalid gateway succeeded")
	}
	h.WantClean(before)
	_, err := then.Setup(context.Background(), "c1", path)
	want := said{"ADD", "podnet", "bridge", "c1", "eth0", "failed to set bridge addr: could not set bridge's mac: invalid argument"}
	if got := whatSaid(err); got != want {
		t.Errorf("error\n%+v, want\n%+v", got, want)
	}
	h.WantClean(before)
	if _, err := then.Setup(context.Background(), "c1", path); err != nil {
		t.Error(err)
	}
	h.detach(then, "c1")
	h.WantClean(before)
}

func (h *realHost) deadlineList() []byte {
	c := testhost.Everything()
	return c.Conf("podnet", "1.0.0", h.Path("ipam"))
}

func (h *realHost) setUpAndRemove(r *cni.Runtime, path string) time.Duration {
	h.T.Helper()
	start := time.Now()
	if _, err := r.Setup(context.Background(), "c1", path, onePort); err != nil {
		h.T.Fatal(err)
	}
	took := time.Since(start)
	expect.NoError(h.T, r.Remove(context.Background(), "c1", path))
	return took
}

// duration returns the time of a Setup on this machine, so that deadlines fall
// into the middle of one.
func (h *realHost) duration() time.Duration {
	h.T.Helper()
	r := h.Real(cni.WithLoNetwork, cni.WithConfListBytes(h.deadlineList()))
	path := h.Container("c1")
	return slices.Max([]time.Duration{h.setUpAndRemove(r, path), h.setUpAndRemove(r, path)})
}
