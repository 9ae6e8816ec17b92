package builtin_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/nettest"
)

// taken99 requests the address of the LAN's own machine.
const taken99 = `{"type": "static", "addresses": [{"address": "fd00::99/64"}]}`

// wantNothingLeft runs an ADD, which must fail, and checks that it leaves
// nothing behind.
func (m *machine) wantNothingLeft(t *testing.T, add func() error, want string) {
	t.Helper()
	host, container := plugintest.Audit(t, m.host), plugintest.Audit(t, m.container, m.dir)
	expect.Says(t, "ADD", add(), want)
	plugintest.NoLeak(t, container, plugintest.Audit(t, m.container, m.dir))
	plugintest.NoLeak(t, host, plugintest.Audit(t, m.host))
}

// whenThere calls fn as soon as the container has its interface.
func (m *machine) whenThere(t *testing.T, fn func()) (done chan struct{}) {
	t.Helper()
	watch := expect.Value(links.WatchAddresses(m.container))(t)
	conn := expect.Value(links.Dial(m.container))(t)
	done = make(chan struct{})
	go func() {
		defer close(done)
		defer watch.Close()
		defer conn.Close()
		for {
			if l, err := conn.Link(m.call.IfName); err == nil && l.Up() {
				fn()
				return
			}
			if err := watch.Wait(t.Context()); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	return done
}

// TestFault_F53_ACarrierThatComesLateIsWaitedFor: hardware that was down first
// negotiates a speed, and cannot send before.
func TestFault_F53_ACarrierThatComesLateIsWaitedFor(t *testing.T) {
	t.Parallel()
	lan := plugintest.NewLAN(t)
	m := newMachine(t, lan, "host-device", taken99)
	setDown := func(nl *netlink.Handle, l netlink.Link) error { return nl.LinkSetDown(l) }
	nettest.Change(t, m.host, "lan0", setDown)
	nettest.Change(t, lan.Machine, "port1", setDown)
	m.wantNothingLeft(t, func() error {
		plugged := m.whenThere(t, func() { nettest.SetUp(t, lan.Machine, "port1") })
		_, err := m.Run(t.Context(), "ADD", m.call)
		<-plugged
		nettest.Change(t, lan.Machine, "port1", setDown) // restore
		return err
	}, "fd00::99/64 belongs to another machine")
}

// TestFault_F53_ACallThatIsCancelledLeavesNothing, even during duplicate
// detection.
func TestFault_F53_ACallThatIsCancelledLeavesNothing(t *testing.T) {
	for typ := range lanTypes {
		t.Run(typ, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, plugintest.NewLAN(t), typ, `{"type": "static", "addresses": [{"address": "fd00::2/64"}]}`)
			m.wantNothingLeft(t, func() error {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				done := m.whenThere(t, func() { cancel(errors.New("the container is not wanted any more")) })
				_, err := m.Run(ctx, "ADD", m.call)
				<-done
				return err
			}, "not wanted any more")
		})
	}
}

// TestFault_F53_AMACAddressThatAnotherMachineHasIsRefused: that machine also
// has the link-local address.
func TestFault_F53_AMACAddressThatAnotherMachineHasIsRefused(t *testing.T) {
	t.Parallel()
	lan := plugintest.NewLAN(t)
	first := newMachine(t, lan, "host-device", `{"type": "static", "addresses": [{"address": "fd00::2/64"}]}`)
	second := newMachine(t, lan, "host-device", `{"type": "static", "addresses": [{"address": "fd00::3/64"}]}`)
	for _, m := range []*machine{first, second} {
		nettest.Change(t, m.host, "lan0", func(nl *netlink.Handle, l netlink.Link) error {
			return errors.Join(nl.LinkSetDown(l), nl.LinkSetHardwareAddr(l, net.HardwareAddr{2, 0, 0, 0, 0, 0x77}))
		})
	}
	first.Must(t, "ADD", first.call)
	second.wantNothingLeft(t, func() error { return second.MustFail(t, "ADD", second.call) }, "link-local address fe80::ff:fe00:77/64")
}

// TestFault_F53_TheAdministratorSaysHowDuplicatesAreLookedFor: ADD waits for as
// long as the configured detection takes, and not at all if it is off.
func TestFault_F53_TheAdministratorSaysHowDuplicatesAreLookedFor(t *testing.T) {
	for name, tt := range map[string]struct {
		set         string
		least, most time.Duration
	}{
		"off":                      {"accept_dad=0", 0, time.Second},
		"longer than 5 s":          {"dad_transmits=6", 6 * time.Second, time.Minute},
		"without a solicitation":   {"dad_transmits=0", 0, time.Minute}, // the kernel's delay remains
		"used before it has ended": {"optimistic_dad=1", time.Second, time.Minute},
	} {
		for _, typ := range []string{"macvlan", "host-device"} {
			t.Run(name+"/"+typ, func(t *testing.T) {
				t.Parallel()
				var m *machine
				expect.Quick(t, "ADD", tt.most, func() time.Duration {
					m = newMachine(t, plugintest.NewLAN(t), typ, `{"type": "static", "addresses": [{"address": "fd00::2/64"}]}`)
					configureDefaults(t, m.host, []string{tt.set})
					configureDefaults(t, m.container, []string{tt.set})
					begin := time.Now()
					m.call.Prev = m.Must(t, "ADD", m.call)
					took := time.Since(begin)
					expect.That(t, took >= tt.least, "ADD took %s, want %s at least", took, tt.least)
					return took
				})
				for _, a := range m.addresses(t) {
					if a.Tentative && !a.Addr().IsLinkLocalUnicast() {
						t.Errorf("address %s cannot be used when ADD returns", a.Prefix)
					}
				}
				m.Must(t, "CHECK", m.call)
			})
		}
	}
}
