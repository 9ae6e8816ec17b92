package behaviour_test

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/guard"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/internal/testhost"
)

// onBridge returns a Runtime of a host on which containers have the bridge br0.
func onBridge(h *realHost, opts ...cni.Opt) *cni.Runtime {
	conf := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "bridge", "bridge": "br0", "isDefaultGateway": true,
		"ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.77.0.0/16"}]]}}]}`, h.Path("ipam"))
	return h.Runtime(append([]cni.Opt{cni.WithConfListBytes([]byte(conf)), cni.WithBuiltinPlugins()}, opts...)...)
}

// TestADeletedBridgeComesBackWithItsAddress: a Setup that makes the bridge again gives it
// the hardware address that the containers on it know, whoever attached them. A connection
// of one lives on when that is repaired.
func TestADeletedBridgeComesBackWithItsAddress(t *testing.T) {
	h := newRealHost(t)
	r, other := onBridge(h), onBridge(h, cni.WithOwner("another program"))
	c1 := h.Container("c1")
	testhost.MustSetUp(t, r, "c1", c1)
	h.Serve("", 7)
	var flow net.Conn
	expect.NoError(t, h.At(c1, func() (err error) {
		flow, err = net.Dial("udp", "10.77.0.1:7")
		return err
	}))
	defer flow.Close()
	was := h.Link("", "br0").Attrs().HardwareAddr
	for i, by := range []*cni.Runtime{r, other} {
		h.Change("", "br0", (*netlink.Handle).LinkDel)
		id := fmt.Sprint("new", i)
		testhost.MustSetUp(t, by, id, h.Container(id))
		expect.Same(t, "the bridge's address", h.Link("", "br0").Attrs().HardwareAddr.String(), was.String())
	}
	expect.NoError(t, expect.Reported(r.Repair(t.Context(), "c1", cni.RepairOptions{})))
	expect.Eventually(t, "an answer to the connection", func() bool {
		if _, err := flow.Write([]byte("?")); err != nil {
			return false // an answer to an earlier one
		}
		expect.NoError(t, flow.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
		_, err := flow.Read(make([]byte, 64))
		return err == nil
	})
	health := expect.Value(r.Health(t.Context(), cni.HealthOptions{}))(t)
	expect.Same(t, "healthy", testhost.Healthy(health), len(health)-1) // new0 is not on the bridge any more
	expect.NoError(t, r.Check(t.Context(), "c1", c1))
}

// TestABridgeThatNobodyKnowsIsNew: no container of this host and boot is on record that an
// ADD made it for.
func TestABridgeThatNobodyKnowsIsNew(t *testing.T) {
	for what, happens := range map[string]func(h *realHost, r *cni.Runtime){
		"all were removed": func(h *realHost, r *cni.Runtime) { expect.NoError(h.T, r.Remove(h.T.Context(), "c1", "")) },
		"of another boot": func(h *realHost, _ *cni.Runtime) {
			h.ChangeRecord("c1", func(rec *record.Record) { rec.Boot = "another" })
		},
		"on another host": func(h *realHost, _ *cni.Runtime) { h.ChangeRecord("c1", func(rec *record.Record) { rec.Host = "1:1" }) },
		"no ADD made it": func(h *realHost, _ *cni.Runtime) {
			h.ChangeRecord("c1", func(rec *record.Record) { rec.Attachments[0].Facts = nil })
		},
		"of another bridge": func(h *realHost, _ *cni.Runtime) { h.replaceInResult("c1", "br0", "br1") },
		"its note is unclear": func(h *realHost, _ *cni.Runtime) {
			h.ChangeRecord("c1", func(rec *record.Record) { rec.Attachments[0].Facts["bridge.made"] = []byte(`7`) })
		},
	} {
		t.Run(what, func(t *testing.T) {
			h := newRealHost(t)
			r := onBridge(h, cni.WithoutReaping())
			testhost.MustSetUp(t, r, "c1", h.Container("c1"))
			was := h.Link("", "br0").Attrs().HardwareAddr
			happens(h, r)
			h.Change("", "br0", (*netlink.Handle).LinkDel)
			testhost.MustSetUp(t, r, "c2", h.Container("c2"))
			now := h.Link("", "br0").Attrs().HardwareAddr
			expect.That(t, now.String() != was.String(), "the bridge has the address %v again", now)
		})
	}
}

// TestTheNewestRecordKnowsTheBridge: where an earlier version made the bridge anew, with
// another address, the last containers know that.
func TestTheNewestRecordKnowsTheBridge(t *testing.T) {
	h := newRealHost(t)
	r := onBridge(h)
	testhost.MustSetUp(t, r, "c1", h.Container("c1"))
	const old = "02:00:00:00:00:01"
	h.ChangeRecord("c1", func(rec *record.Record) {
		rec.Attachments[0].Facts["bridge.made"] = []byte(`{"mac": "` + old + `"}`)
	})
	testhost.MustSetUp(t, r, "c2", h.Container("c2"))
	was := h.Link("", "br0").Attrs().HardwareAddr
	h.Change("", "br0", (*netlink.Handle).LinkDel)
	testhost.MustSetUp(t, r, "c3", h.Container("c3"))
	expect.Same(t, "the bridge's address", h.Link("", "br0").Attrs().HardwareAddr.String(), was.String())
}

// replaceInResult changes the result of the container's ADD on record.
func (h *realHost) replaceInResult(id, old, new string) {
	h.T.Helper()
	h.ChangeRecord(id, func(rec *record.Record) {
		n := &rec.Attachments[0]
		n.Result = []byte(strings.ReplaceAll(string(n.Result), old, new))
	})
}

// newExecutedHost is newGuardedHost for containers of the reference plugins on a bridge.
// The script runs before the first is attached.
func newExecutedHost(t *testing.T, n int, script string) *guardedHost {
	t.Helper()
	h := newBareHost(t)
	h.sh(script)
	h.attachAll(guardConf(false, ""), n, cni.WithPluginDir([]string{testhost.ReferencePlugins(t)}))
	h.back("at first")
	return h
}

// verdicts returns the verdict on each container as text.
func (h *guardedHost) verdicts() string {
	h.t.Helper()
	report := expect.Value(h.r.Health(h.t.Context(), cni.HealthOptions{Containers: h.ids}))(h.t)
	var lines []string
	for _, one := range report {
		lines = append(lines, one.String())
	}
	return strings.Join(lines, "\n")
}

// wantHealthy: as Health says, and so says the CHECK of each plugin.
func (h *guardedHost) wantHealthy(what string) {
	h.t.Helper()
	var want []string
	for _, id := range h.ids {
		want = append(want, id+": healthy")
	}
	expect.Same(h.t, what+": verdicts", h.verdicts(), strings.Join(want, "\n"))
	for _, id := range h.ids {
		expect.NoError(h.t, h.r.Check(h.t.Context(), id, h.Path("netns", id)))
	}
}

// repair repairs all containers, and returns an error for each remaining difference.
func (h *guardedHost) repair() error {
	h.t.Helper()
	var errs []error
	for _, id := range h.ids {
		errs = append(errs, expect.Value(h.r.Repair(h.t.Context(), id, cni.RepairOptions{}))(h.t).Err())
	}
	return errors.Join(errs...)
}

// cutOff waits until no container reaches the outside.
func (h *guardedHost) cutOff(what string) {
	h.t.Helper()
	for i := range h.ids {
		expect.Eventually(h.t, what+": no traffic", func() bool { return h.reaches(i) != nil })
	}
}

// bridgeDamages are what can happen to the bridge that the containers share.
var bridgeDamages = []string{
	"ip link del br0",
	"ip link set br0 down",
	"ip addr flush dev br0 scope global",
}

// TestFault_F65_ABridgeThatAnExecutableMadeComesBack: with its address and its hardware
// address, by Repair and by a guard, also for the container that found it there.
func TestFault_F65_ABridgeThatAnExecutableMadeComesBack(t *testing.T) {
	var table []string
	for _, damage := range bridgeDamages {
		t.Run(damage+"/repair", func(t *testing.T) {
			h := newExecutedHost(t, 2, "")
			h.wantHealthy("before")
			before := h.addresses()
			h.sh(damage)
			h.cutOff(damage)
			expect.NoError(t, h.repair())
			took := h.back(damage)
			h.wantHealthy("after")
			expect.Same(t, "addresses", h.addresses(), before)
			table = append(table, fmt.Sprintf("repair %-36s %6d ms", damage, took.Milliseconds()))
		})
		t.Run(damage+"/guard", func(t *testing.T) {
			h := newExecutedHost(t, 2, "")
			before := h.addresses()
			h.guard(h.r, guard.Options{})
			h.sh(damage)
			took := h.back(damage)
			h.quiet()
			h.wantHealthy("after")
			h.wantNoFlapping(damage, h.taken())
			expect.Same(t, "addresses", h.addresses(), before)
			table = append(table, fmt.Sprintf("guard  %-36s %6d ms", damage, took.Milliseconds()))
		})
	}
	t.Logf("traffic is back:\n%s", strings.Join(table, "\n"))
}

// TestFault_F65_ACrowdMakesOneBridge: executables that run at the same time on a host without
// a bridge. Whichever of them makes it, all containers know.
func TestFault_F65_ACrowdMakesOneBridge(t *testing.T) {
	const many = 8
	h := newExecutedHost(t, 0, "")
	errs := make(chan error, many)
	for i := range many {
		id := fmt.Sprintf("c%d", i)
		h.ids = append(h.ids, id)
		path := h.Container(id)
		h.Serve(path, 80)
		go func() {
			_, err := h.r.Setup(t.Context(), id, path, portOf(i))
			errs <- err
		}()
	}
	for range many {
		expect.NoError(t, expect.Await(t, "a Setup", errs))
	}
	h.back("at first")
	for range 2 { // also if the containers of the first round have made it again
		h.sh("ip link del br0")
		expect.NoError(t, h.repair())
		h.back("deleted")
	}
}

// TestFault_F65_ABridgeOfTheHostStaysTheHosts: one that was there before the first ADD,
// one that somebody has made in place of ours, and one of which a record of an earlier
// version says nothing. Repair names the reason, and leaves the bridge alone.
func TestFault_F65_ABridgeOfTheHostStaysTheHosts(t *testing.T) {
	const byHand = "ip link add br0 type bridge; ip link set br0 up; "
	for _, tt := range []struct {
		name, before, damage, why string
		change                    func(*record.Record)
	}{
		{name: "there before", before: byHand, damage: "ip link del br0", why: "there before the ADD"},
		{name: "there before, and down", before: byHand, damage: "ip link set br0 down", why: "there before the ADD"},
		{name: "another program's", before: "ip link add br0 alias other type bridge; ip link set br0 up", damage: "ip link del br0", why: "there before the ADD"},
		{name: "made again by hand", damage: "ip link del br0; " + byHand, why: "somebody else replaced the bridge of the ADD"},
		{name: "an earlier version's record", damage: "ip link del br0", why: "the record does not say whether an ADD made the bridge",
			change: func(rec *record.Record) {
				for i := range rec.Attachments {
					rec.Attachments[i].Facts = nil
				}
			}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newExecutedHost(t, 1, tt.before)
			if tt.change != nil {
				h.ChangeRecord("c0", tt.change)
			}
			h.sh(tt.damage)
			err := h.repair()
			expect.Is(t, err, cni.ErrNotRepairable)
			fails(t, err, tt.why)
			expect.Contains(t, "Health", h.verdicts(), tt.why, "c0: broken")
			br, err := netlink.LinkByName("br0")
			switch {
			case strings.HasPrefix(tt.damage, "ip link del br0; "):
				expect.NoError(t, err)
				expect.Same(t, "alias", br.Attrs().Alias, "")
			case strings.HasPrefix(tt.damage, "ip link del"):
				expect.Same(t, "a bridge", errors.As(err, new(netlink.LinkNotFoundError)), true)
			default:
				expect.NoError(t, err)
				expect.Same(t, "state", br.Attrs().Flags&1 != 0, false)
			}
		})
	}
}

// byHand makes the bridge of guardConf as an administrator does.
const byHand = "ip link add br0 address 02:00:00:00:00:66 type bridge; ip addr add 10.77.0.1/16 dev br0; ip link set br0 up; "

// TestFault_F66_AGuardPutsPortsOnABridgeThatIsMadeAgain: by whoever it was made first, and
// whatever the guard saw meanwhile.
func TestFault_F66_AGuardPutsPortsOnABridgeThatIsMadeAgain(t *testing.T) {
	for _, tt := range []struct{ name, before string }{
		{"the administrator's", byHand},
		{"an executable's", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newExecutedHost(t, 2, tt.before)
			h.guard(h.r, guard.Options{})
			h.taken()
			h.sh("ip link del br0")
			if tt.before != "" { // nobody but the administrator can help
				expect.Eventually(t, "the guard leaves the bridge", func() bool { return strings.Contains(h.story(), "left") })
				h.quiet()
			}
			// A guard may be faster with one that an ADD has made.
			h.sh("ip link add br0 type bridge || true; ip addr add 10.77.0.1/16 dev br0 || true; ip link set br0 up")
			t.Logf("traffic is back after %v", h.back("made again"))
			h.quiet()
			expect.Lacks(t, "Health", h.verdicts(), "broken")
		})
	}
}

// TestFault_F66_HealthAndRepairAgree about a bridge that was made again by hand: its
// hardware address is another one, which does not matter, and which nobody restores.
func TestFault_F66_HealthAndRepairAgree(t *testing.T) {
	for _, before := range []string{byHand, ""} {
		t.Run(fmt.Sprintf("by hand before too %v", before != ""), func(t *testing.T) {
			h := newExecutedHost(t, 2, before)
			expect.Same(t, "healthy before", strings.Count(h.verdicts(), ": healthy"), 2)
			h.sh("ip link del br0; " + strings.Replace(byHand, ":66", ":67", 1))
			h.cutOff("made again")
			expect.NoError(t, h.repair())
			h.back("repaired")
			report := expect.Value(h.r.Health(t.Context(), cni.HealthOptions{}))(t)
			t.Log(report)
			expect.Same(t, "healthy", testhost.Healthy(report), 2)
			for _, one := range report {
				expect.NoError(t, one.Err())
				expect.Says(t, one.ContainerID+": the note", one.Reason, "hardware address")
			}
			recovered := expect.Value(h.r.Recover(t.Context()))(t)
			expect.Same(t, "kept", len(recovered.Kept), 0)
			expect.Same(t, "adopted", recovered.Adopted, []string{"c0", "c1"})
		})
	}
}
