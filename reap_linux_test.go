package cni_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// eventuallyReaped examines all containers until none is recorded.
func (h *realHost) eventuallyReaped(r *cni.Runtime) {
	h.T.Helper()
	expect.Eventually(h.T, "the end of all containers", func() bool {
		expect.NoError(h.T, r.Reap(h.T.Context()))
		return len(testhost.Recorded(h.T, r)) == 0
	})
}

// abandoned is a container of a bridge whose path is gone, so that nothing but the
// library keeps its namespace.
func abandonedContainer(t *testing.T, opts ...cni.Opt) (h *realHost, r *cni.Runtime) {
	t.Helper()
	h = newRealHost(t)
	r = h.bridged(opts...)
	path := h.Mortal("c1")
	testhost.MustSetUp(t, r, "c1", path)
	expect.NoError(t, netns.Remove(path))
	return h, r
}

// TestFault_F33_APathThatHasBecomeAnotherThing no longer leads to a namespace.
func TestFault_F33_APathThatHasBecomeAnotherThing(t *testing.T) {
	for what, change := range map[string]func(h *realHost, path string) error{
		"nothing":           func(*realHost, string) error { return nil },
		"an empty file":     func(_ *realHost, path string) error { return os.WriteFile(path, nil, 0o600) },
		"a directory":       func(_ *realHost, path string) error { return os.Mkdir(path, 0o700) },
		"another namespace": func(h *realHost, path string) error { h.NewNetNS("c1"); return nil },
		"a file on the way": func(h *realHost, path string) error {
			return errors.Join(os.Rename(h.Path("netns"), h.Path("moved")), os.WriteFile(h.Path("netns"), nil, 0o600))
		},
	} {
		t.Run(what, func(t *testing.T) {
			h := newRealHost(t)
			r := h.bridged()
			path := h.Mortal("c1")
			testhost.MustSetUp(t, r, "c1", path)
			expect.NoError(t, netns.Remove(path))
			expect.NoError(t, change(h, path))
			h.eventuallyReaped(r)
			if what == "a file on the way" {
				expect.NoError(t, errors.Join(os.Remove(h.Path("netns")), os.Rename(h.Path("moved"), h.Path("netns"))))
			}
			if what == "a directory" || what == "an empty file" {
				expect.NoError(t, os.Remove(path))
			}
		})
	}
}

// TestFault_F33_TheNextProcessGoesOn after one that was killed between
// recording the release of a pin and the release.
func TestFault_F33_TheNextProcessGoesOn(t *testing.T) {
	h, _ := abandonedContainer(t)
	ends := h.veths()
	rec := expect.Value(h.Records().Load("c1"))(t)
	expect.NoError(t, h.Records().Append(rec, record.Entry{LetGo: &record.LetGo{Ends: ends}}))
	expect.Same(t, "kept", keeps(h.Host, "c1"), true)
	h.eventuallyReaped(h.bridged())
}

// veths returns the indexes of the host's ends of veth pairs.
func (h *realHost) veths() (all []int) {
	h.T.Helper()
	for _, l := range expect.Value(audit.Dump(netlink.LinkList))(h.T) {
		if l.Type() == "veth" {
			all = append(all, l.Attrs().Index)
		}
	}
	return all
}

// TestFault_F33_ADescriptorIsLetGo, too, if mounts are not allowed.
func TestFault_F33_ADescriptorIsLetGo(t *testing.T) {
	h := newRealHost(t)
	r := h.bridged(cni.WithHostNetNS(h.Path("netns", "host")))
	path := h.Mortal("c1")
	id := idAt(t, path)
	expect.NoError(t, testhost.UnableToMount(testhost.SetUp(t.Context(), r, "c1", path)))
	expect.Same(t, "kept by a mount", keeps(h.Host, "c1"), false)
	expect.NoError(t, netns.Remove(path))
	expect.That(t, openAs(t, id) != 0, "no descriptor keeps the namespace")
	h.eventuallyReaped(r)
	expect.Same(t, "descriptors", openAs(t, id), 0)
}

// TestFault_F33_AnInterruptedSetupOrRemoveIsFinished as Recover does.
func TestFault_F33_AnInterruptedSetupOrRemoveIsFinished(t *testing.T) {
	for _, state := range []record.State{record.Planned, record.Deleting} {
		t.Run(fmt.Sprintf("state %q", state), func(t *testing.T) {
			s := testhost.NewStage(t)
			r := s.Runtime(cni.WithConfListBytes(s.Network("net", "1.0.0", "p", "q")))
			path := s.Container("c1")
			expect.NoError(t, testhost.SetUp(t.Context(), r, "c1", path)())
			s.RemoveNetNS("c1")
			s.TakeCalls()
			s.ChangeRecord("c1", func(rec *record.Record) { rec.Attachments[0].State = state })
			reap(t, r)
			calls := s.TakeCalls()
			expect.Same(t, "calls", testhost.Rendered(calls), []string{"DEL q c1/eth0", "DEL p c1/eth0"})
			expect.Same(t, "CNI_NETNS", calls[0].NetNS, s.Pin("c1"))
			expect.Same(t, "on record", testhost.Recorded(t, r), []string{})
		})
	}
}

// TestFault_F33_ARemovalThatFailsIsTriedAgainLater, and the pass continues.
func TestFault_F33_ARemovalThatFailsIsTriedAgainLater(t *testing.T) {
	s := testhost.NewStage(t)
	s.On("p", "DEL", testhost.Says(7, "not now"))
	r := s.Runtime(cni.WithConfListBytes(s.Network("net", "1.0.0", "p")))
	expect.NoError(t, testhost.SetUp(t.Context(), r, "c1", s.Container("c1"))())
	s.RemoveNetNS("c1")
	expect.Fails(t, "Remove succeeds", r.Remove(t.Context(), "c1", ""))
	s.TakeCalls()
	for range 3 {
		reap(t, r)
	}
	if calls := s.Took(); len(calls) > 1 { // a slow machine reaches the second attempt
		t.Errorf("calls %q, soon after a failure", calls)
	}
	s.On("p", "DEL", scripted.Action{})
	(&realHost{&testhost.RealHost{Host: s.Host}}).eventuallyReaped(r)
}

// TestFault_F33_TheNumberOfANamespaceThatHasEndedIsAnothers: neither Remove,
// with the recorded path, nor Recover enters its new owner.
func TestFault_F33_TheNumberOfANamespaceThatHasEndedIsAnothers(t *testing.T) {
	for _, way := range []string{"Remove", "Recover", "the background", "Setup"} {
		t.Run(way, func(t *testing.T) {
			h := newRealHost(t)
			r := h.bridged()
			own, _ := testhost.NewTask(t)
			testhost.MustSetUp(t, r, "c2", own)
			expect.Value(r.Setup(t.Context(), "c1", h.Container("c1")))(t)
			// As if c2 had the number and, by chance, the path that c1 had.
			rec := expect.Value(h.Records().Load("c1"))(t)
			id := idAt(t, own)
			rec.NetNS.Path, rec.NetNS.Dev, rec.NetNS.Ino = own, id.Dev, id.Ino
			rec.LetGo = &record.LetGo{Ends: []int{1 << 20}}
			expect.NoError(t, h.Records().Begin(rec))
			expect.NoError(t, netns.Remove(h.Pin("c1")))
			other := h.Path("netns", "c3")
			switch way {
			case "Remove":
				expect.NoError(t, r.Remove(t.Context(), "c1", ""))
			case "Recover":
				expect.Same(t, "report", *expect.Value(r.Recover(t.Context()))(t), cni.Report{Adopted: []string{"c2"}, Removed: []string{"c1"}})
			case "Setup":
				testhost.MustSetUp(t, r, "c1", h.Container("c3"))
				expect.NoError(t, r.Remove(t.Context(), "c1", other))
			default:
				h.ChangeRecord("c1", func(rec *record.Record) { rec.NetNS.Path = h.Path("nowhere") })
				reap(t, r)
			}
			expect.Same(t, "on record", testhost.Recorded(t, r), []string{"c2/eth0 attached"})
			expect.NoError(t, r.Check(t.Context(), "c2", own))
			expect.NoError(t, r.Remove(t.Context(), "c2", own))
		})
	}
}

// TestFault_F33_OneInACrowd is found by a look in the background, which reads in parts.
func TestFault_F33_OneInACrowd(t *testing.T) {
	h := newRealHost(t)
	r := h.bridged(cni.WithOwner("tester"))
	path := h.Mortal("c1")
	testhost.MustSetUp(t, r, "c1", path)
	expect.NoError(t, netns.Remove(path))
	h.crowd(r, 1000)
	lives := h.Container("c2")
	testhost.MustSetUp(t, r, "c2", lives)
	expect.Eventually(h.T, "the end of c1", func() bool {
		return expect.Value(h.Records().Load("c1"))(t) == nil
	})
	expect.NoError(t, r.Remove(t.Context(), "c2", lives))
}

// TestFault_F33_ABridgeWithThePortsAddressHidesNoEnd: a bridge without a
// configured hardware address has that of one of its ports. This does not make
// it an end of another container.
func TestFault_F33_ABridgeWithThePortsAddressHidesNoEnd(t *testing.T) {
	h := newRealHost(t)
	r := h.bridged()
	lives := h.Container("c2")
	testhost.MustSetUp(t, r, "c2", lives)
	bridge := expect.Value(netlink.LinkByName("cni0"))(t)
	port := expect.Value(netlink.LinkByIndex(h.veths()[0]))(t)
	expect.NoError(t, netlink.LinkSetHardwareAddr(port, bridge.Attrs().HardwareAddr))
	path := h.Mortal("c1")
	testhost.MustSetUp(t, r, "c1", path)
	expect.NoError(t, netns.Remove(h.Pin("c1"))) // as after a restart without mounts
	expect.NoError(t, netns.Remove(path))
	expect.Eventually(h.T, "the end of the interface", func() bool { return len(h.veths()) == 1 })
	reap(t, r)
	reap(t, r)
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{"c2/eth0 attached"})
	expect.NoError(t, r.Remove(t.Context(), "c2", lives))
}

// crowd records containers whose paths lead to their namespaces.
func (h *realHost) crowd(r *cni.Runtime, n int) {
	h.T.Helper()
	path := h.Container("crowd")
	testhost.MustSetUp(h.T, r, "crowd", path)
	base := expect.Value(h.Records().Load("crowd"))(h.T)
	ns := expect.Value(netns.Open(path))(h.T)
	defer ns.Close()
	for i := range n {
		rec := *base
		rec.ContainerID, rec.Generation = record.ID(fmt.Sprint("crowd-", i)), 0
		rec.Attachments = slices.Clone(base.Attachments)
		expect.NoError(h.T, h.Records().Begin(&rec))
	}
}
