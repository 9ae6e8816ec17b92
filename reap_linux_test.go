package cni_test

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/netns"
)

// eventuallyReaped looks at all containers until none is on record.
func (h *realHost) eventuallyReaped(r *cni.Runtime) {
	h.t.Helper()
	h.eventually("the end of all containers", func() bool {
		_, err := r.Reap(h.t.Context())
		wantNil(h.t, err)
		return len(recorded(h.t, r)) == 0
	})
}

// abandoned is a container of a bridge whose path is gone, so that nothing but the
// library keeps its namespace.
func abandonedContainer(t *testing.T, opts ...cni.Opt) (h *realHost, r *cni.Runtime) {
	t.Helper()
	h = newRealHost(t)
	r = h.bridged(opts...)
	path := h.mortal("c1")
	setUpOrFail(t, r, "c1", path)
	wantNil(t, netns.Remove(path))
	return h, r
}

// TestFault_F33_APathThatHasBecomeAnotherThing is that of no namespace any more.
func TestFault_F33_APathThatHasBecomeAnotherThing(t *testing.T) {
	for what, change := range map[string]func(h *realHost, path string) error{
		"nothing":           func(*realHost, string) error { return nil },
		"an empty file":     func(_ *realHost, path string) error { return os.WriteFile(path, nil, 0o600) },
		"a directory":       func(_ *realHost, path string) error { return os.Mkdir(path, 0o700) },
		"another namespace": func(h *realHost, path string) error { h.newNetNS("c1"); return nil },
		"a file on the way": func(h *realHost, path string) error {
			return errors.Join(os.Rename(h.path("netns"), h.path("moved")), os.WriteFile(h.path("netns"), nil, 0o600))
		},
	} {
		t.Run(what, func(t *testing.T) {
			h := newRealHost(t)
			r := h.bridged()
			path := h.mortal("c1")
			setUpOrFail(t, r, "c1", path)
			wantNil(t, netns.Remove(path))
			wantNil(t, change(h, path))
			h.eventuallyReaped(r)
			if what == "a file on the way" {
				wantNil(t, errors.Join(os.Remove(h.path("netns")), os.Rename(h.path("moved"), h.path("netns"))))
			}
			if what == "a directory" || what == "an empty file" {
				wantNil(t, os.Remove(path))
			}
		})
	}
}

// TestFault_F33_TheNextProcessGoesOn where one was killed: when the record said
// that the pin was let go, and it was not.
func TestFault_F33_TheNextProcessGoesOn(t *testing.T) {
	h, _ := abandonedContainer(t)
	ends := h.veths()
	rec, err := h.records().Load("c1")
	wantNil(t, err)
	wantNil(t, h.records().Append(rec, record.Entry{LetGo: &record.LetGo{Ends: ends}}))
	wantSame(t, "kept", keeps(h.host, "c1"), true)
	h.eventuallyReaped(h.bridged())
}

// veths are the indexes of the host's ends of veth pairs.
func (h *realHost) veths() (all []int) {
	h.t.Helper()
	list, err := audit.Dump(netlink.LinkList)
	wantNil(h.t, err)
	for _, l := range list {
		if l.Type() == "veth" {
			all = append(all, l.Attrs().Index)
		}
	}
	return all
}

// TestFault_F33_ADescriptorIsLetGo, too, where mounts are not allowed.
func TestFault_F33_ADescriptorIsLetGo(t *testing.T) {
	h := newRealHost(t)
	r := h.bridged(cni.WithHostNetNS(h.path("netns", "host")))
	path := h.mortal("c1")
	id := idAt(t, path)
	wantNil(t, unableToMount(setUp(t.Context(), r, "c1", path)))
	wantSame(t, "kept by a mount", keeps(h.host, "c1"), false)
	wantNil(t, netns.Remove(path))
	if openAs(t, id) == 0 {
		t.Error("no descriptor keeps the namespace")
	}
	h.eventuallyReaped(r)
	wantSame(t, "descriptors", openAs(t, id), 0)
}

// TestFault_F33_WhatASetupOrRemoveHadBegunIsFinished as Recover does.
func TestFault_F33_WhatASetupOrRemoveHadBegunIsFinished(t *testing.T) {
	for _, state := range []record.State{record.Planned, record.Deleting} {
		t.Run(fmt.Sprintf("state %q", state), func(t *testing.T) {
			s := newStage(t)
			r := s.runtime(cni.WithConfListBytes(s.network("net", "1.0.0", "p", "q")))
			path := s.container("c1")
			wantNil(t, setUp(t.Context(), r, "c1", path)())
			s.forget("c1")
			s.takeCalls()
			s.changeRecord("c1", func(rec *record.Record) { rec.Networks[0].State = state })
			reap(t, r)
			calls := s.takeCalls()
			wantSame(t, "calls", rendered(calls), []string{"DEL q c1/eth0", "DEL p c1/eth0"})
			wantSame(t, "CNI_NETNS", calls[0].NetNS, s.pin("c1"))
			wantSame(t, "on record", recorded(t, r), []string{})
		})
	}
}

// TestFault_F33_ARemovalThatFailsIsTriedAgainLater, and the pass goes on.
func TestFault_F33_ARemovalThatFailsIsTriedAgainLater(t *testing.T) {
	s := newStage(t)
	s.on("p", "DEL", says(7, "not now"))
	r := s.runtime(cni.WithConfListBytes(s.network("net", "1.0.0", "p")))
	wantNil(t, setUp(t.Context(), r, "c1", s.container("c1"))())
	s.forget("c1")
	if err := r.Remove(t.Context(), "c1", ""); err == nil {
		t.Fatal("Remove succeeds")
	}
	s.takeCalls()
	for range 3 {
		reap(t, r)
	}
	if calls := s.took(); len(calls) > 1 { // a slow machine comes to the second try
		t.Errorf("calls %q, soon after a failure", calls)
	}
	s.on("p", "DEL", scripted.Action{})
	(&realHost{host: s.host}).eventuallyReaped(r)
}

// TestFault_F33_TheNumberOfANamespaceThatHasEndedIsAnothers: neither Remove, by
// the recorded path, nor Recover enters the one that has it now.
func TestFault_F33_TheNumberOfANamespaceThatHasEndedIsAnothers(t *testing.T) {
	for _, way := range []string{"Remove", "Recover", "the background", "Setup"} {
		t.Run(way, func(t *testing.T) {
			h := newRealHost(t)
			r := h.bridged()
			k := newTask(t)
			setUpOrFail(t, r, "c2", k.path())
			_, err := r.Setup(t.Context(), "c1", h.container("c1"))
			wantNil(t, err)
			// As if c2 had the number and, by chance, the path that c1 had.
			rec, err := h.records().Load("c1")
			wantNil(t, err)
			id := idAt(t, k.path())
			rec.NetNS.Path, rec.NetNS.Dev, rec.NetNS.Ino = k.path(), id.Dev, id.Ino
			rec.LetGo = &record.LetGo{Ends: []int{1 << 20}}
			wantNil(t, h.records().Begin(rec))
			wantNil(t, netns.Remove(h.pin("c1")))
			other := h.path("netns", "c3")
			switch way {
			case "Remove":
				wantNil(t, r.Remove(t.Context(), "c1", ""))
			case "Recover":
				recoverWith(t, r, cni.Report{Adopted: []string{"c2"}, Removed: []string{"c1"}})
			case "Setup":
				setUpOrFail(t, r, "c1", h.container("c3"))
				wantNil(t, r.Remove(t.Context(), "c1", other))
			default:
				h.changeRecord("c1", func(rec *record.Record) { rec.NetNS.Path = h.path("nowhere") })
				reap(t, r)
			}
			wantSame(t, "on record", recorded(t, r), []string{"c2/eth0 attached"})
			wantNil(t, r.Check(t.Context(), "c2", k.path()))
			wantNil(t, r.Remove(t.Context(), "c2", k.path()))
		})
	}
}

// TestFault_F33_ACrowdIsReadInParts, and none is passed over.
func TestFault_F33_ACrowdIsReadInParts(t *testing.T) {
	h, r := abandonedContainer(t, cni.WithOwner("tester"))
	h.crowd(r, 1000)
	var read atomic.Int64
	r.ReadRecordsBy(func() { read.Add(1) })
	var passes int
	h.eventually("the end of c1", func() bool {
		n, err := r.Reap(t.Context())
		wantNil(t, err)
		passes = max(passes, n)
		rec, err := h.records().Load("c1")
		wantNil(t, err)
		return rec == nil
	})
	if passes < 2 || read.Load() < 1000 {
		t.Errorf("%d records were read in %d passes", read.Load(), passes)
	}
}

// TestFault_F33_ABridgeWithThePortsAddressHidesNoEnd: a bridge whose hardware
// address nobody has set has that of one of its ports, which is no end of another
// container for that.
func TestFault_F33_ABridgeWithThePortsAddressHidesNoEnd(t *testing.T) {
	h := newRealHost(t)
	r := h.bridged()
	lives := h.container("c2")
	setUpOrFail(t, r, "c2", lives)
	bridge, err := netlink.LinkByName("cni0")
	wantNil(t, err)
	port, err := netlink.LinkByIndex(h.veths()[0])
	wantNil(t, err)
	wantNil(t, netlink.LinkSetHardwareAddr(port, bridge.Attrs().HardwareAddr))
	path := h.mortal("c1")
	setUpOrFail(t, r, "c1", path)
	wantNil(t, netns.Remove(h.pin("c1"))) // as after a restart where mounts are not allowed
	wantNil(t, netns.Remove(path))
	h.eventually("the end of the interface", func() bool { return len(h.veths()) == 1 })
	reap(t, r)
	reap(t, r)
	wantSame(t, "on record", recorded(t, r), []string{"c2/eth0 attached"})
	wantNil(t, r.Remove(t.Context(), "c2", lives))
}

// TestFault_F33_ARoundGoesOnWithWhatIsLoaded: with calls that keep coming a round
// may last for as long as the program, which may load other plugins meanwhile.
func TestFault_F33_ARoundGoesOnWithWhatIsLoaded(t *testing.T) {
	h := newRealHost(t)
	var before, after logged
	conf := cni.WithConfListBytes((&realCase{plugins: []string{`{"type": "loopback"}`}}).conf("podnet", "1.0.0", h.path("ipam")))
	r := h.real(conf, cni.WithBuiltinPlugins(), before.logger())
	path, lives := h.mortal("c1"), h.container("c2")
	setUpOrFail(t, r, "c1", path)
	setUpOrFail(t, r, "c2", lives)
	reap(t, r)
	wantNil(t, netns.Remove(path))
	r.ReapNotBefore(time.Now().Add(100 * time.Millisecond))
	wantNil(t, r.Check(t.Context(), "c2", lives)) // begins a round
	wantNil(t, r.Load(conf, after.logger()))
	wantNil(t, r.Check(t.Context(), "c2", lives))
	h.eventually("a report", func() bool { return len(before.lines("WARN"))+len(after.lines("WARN")) > 0 })
	wantSame(t, "by what was loaded before", before.lines("WARN"), []string{})
	wantNil(t, r.Remove(t.Context(), "c1", ""))
	wantNil(t, r.Remove(t.Context(), "c2", lives))
}
