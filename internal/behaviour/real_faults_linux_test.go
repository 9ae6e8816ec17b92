package behaviour_test

import (
	"context"
	"reflect"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

var onePort = cni.WithCapabilityPortMap([]cni.PortMapping{{HostPort: 8080, ContainerPort: 80, Protocol: "tcp"}})

// reboot removes every namespace with its contents. Files stay, and records
// belong to another boot.
func (h *realHost) reboot(containers ...string) {
	h.T.Helper()
	for _, path := range containers {
		expect.NoError(h.T, netns.Remove(path))
	}
	h.Unpin()
	found := expect.Value(h.Records().List())(h.T)
	for _, f := range found {
		h.ChangeRecord(string(f.Record.ContainerID), func(rec *record.Record) { rec.Boot = "another" })
	}
	ns := h.NewNetNS("rebooted")
	expect.NoError(h.T, unix.Setns(int(ns.File().Fd()), unix.CLONE_NEWNET))
	expect.NoError(h.T, nettest.NoAddressDetection())
	h.LinkUp("lo")
}

// TestFault_F26_RealSetupAfterReboot: after a reboot the addresses are still on
// disk, reserved for containers that return. host-local would report "duplicate
// allocation is not allowed" (F26), so the leftovers are removed first.
func TestFault_F26_RealSetupAfterReboot(t *testing.T) {
	h := newRealHost(t)
	c := testhost.Everything()
	r := h.Real(cni.WithLoNetwork, cni.WithConfListBytes(c.Conf("podnet", "1.0.0", h.Path("ipam"))))
	path := h.Mortal("c1")
	files := h.Audit()
	if _, err := r.Setup(context.Background(), "c1", path, onePort); err != nil {
		t.Fatal(err)
	}
	h.reboot(path)
	h.Mortal("c1")
	result := testhost.MustSetUp(t, r, "c1", path, onePort)
	h.WantAsSaid(result, path, &c)
	if err := r.Check(context.Background(), "c1", path); err != nil {
		t.Error(err)
	}
	if got, want := h.reserved("podnet"), []string{result.IPv4().IP().String(), result.IPv6().IP().String()}; !reflect.DeepEqual(got, want) {
		t.Errorf("reserved %q, want %q", got, want)
	}
	if err := r.Remove(context.Background(), "c1", path); err != nil {
		t.Error(err)
	}
	h.WantClean(files)
}
