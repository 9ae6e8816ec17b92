package cni_test

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/netns"
)

// netlinkIn runs f with netlink of a container's namespace.
func (h *realHost) netlinkIn(path string, f func(*netlink.Handle) error) {
	h.t.Helper()
	ns, err := netns.Open(path)
	wantNil(h.t, err)
	nl, err := netlink.NewHandleAt(vnetns.NsHandle(ns.File().Fd()))
	wantNil(h.t, err)
	defer nl.Close()
	wantNil(h.t, errors.Join(f(nl), ns.Close()))
}

// disguise has a container's root rename an interface, and forge all that it can.
func disguise(nl *netlink.Handle, name, as string) error {
	l, err := nl.LinkByName(name)
	if err != nil {
		return err
	}
	return errors.Join(nl.LinkSetDown(l), nl.LinkSetName(l, as), nl.LinkSetAlias(l, "forged"),
		nl.LinkSetHardwareAddr(l, []byte{2, 0, 0, 0, 0, 0x66}), nl.LinkSetUp(l))
}

// decoy is an interface of the container's own.
func decoy(nl *netlink.Handle, name string) error {
	a := netlink.NewLinkAttrs()
	a.Name = name
	return nl.LinkAdd(&netlink.Bridge{LinkAttrs: a})
}

// linksOf are the names of the interfaces in a namespace but lo.
func (h *realHost) linksOf(path string) (names []string) {
	h.t.Helper()
	h.netlinkIn(path, func(nl *netlink.Handle) error {
		all, err := nl.LinkList()
		for _, l := range all {
			if l.Attrs().Name != "lo" {
				names = append(names, l.Attrs().Name)
			}
		}
		return err
	})
	return names
}

// deviceCases are networks whose interface the container can rename.
func deviceCases() map[string]realCase {
	nic := func(h *realHost) { h.vethPair("up0", "up1"); h.linkUp("up1") }
	return map[string]realCase{
		"macvlan":     {plugins: []string{`{"type": "macvlan", "master": "up0", ` + hostLocal(v4Range) + `}`}, prepare: uplink},
		"host-device": {plugins: []string{`{"type": "host-device", "device": "up0", ` + hostLocal(v4Range) + `}`}, prepare: nic},
		"bridge":      {plugins: []string{bridgeConf(hostLocal(v4Range))}, prepare: uplink},
		"ptp":         {plugins: []string{ptpConf(hostLocal(v4Range))}, prepare: uplink},
	}
}

// A container's root renames its interface, forges what else it can, and puts
// another one in its place: Remove takes the right one all the same.
func TestFault_F47_ARenamedInterfaceIsRemoved(t *testing.T) {
	for kind, opt := range kindsOf() {
		for name, c := range deviceCases() {
			for what, inPlace := range map[string]string{"renamed": "", "replaced": "eth0"} {
				t.Run(kind+"/"+name+"/"+what, func(t *testing.T) {
					h := newRealHost(t)
					c.prepare(h)
					r := h.mixed(opt, cni.WithConfListBytes(c.conf("podnet", "1.0.0", h.path("ipam"))))
					neighbour := h.container("c2")
					if name != "host-device" {
						h.mustSetup(r, "c2", neighbour)
					}
					path := h.container("c1")
					before := h.audit()
					h.mustSetup(r, "c1", path)
					h.netlinkIn(path, func(nl *netlink.Handle) error {
						err := disguise(nl, "eth0", "hidden")
						if inPlace != "" {
							err = errors.Join(err, decoy(nl, inPlace))
						}
						return err
					})
					wantNil(t, r.Remove(t.Context(), "c1", path))
					h.wantClean(before)
					for _, l := range h.linksOf(path) {
						if l == "hidden" {
							t.Errorf("the container has %q", h.linksOf(path))
						}
					}
					if name != "host-device" {
						wantSame(t, "interfaces of the neighbour", h.linksOf(neighbour), []string{"eth0"})
					}
				})
			}
		}
	}
}

// nested starts a process in a network namespace of its own, as a container's
// root can, and returns the path of that.
func (h *realHost) nested(path string) string { return h.process(path, syscall.CLONE_NEWNET) }

// process starts one in a container, and returns the path of its namespace.
func (h *realHost) process(path string, flags uintptr) string {
	h.t.Helper()
	cmd := exec.Command("sleep", "600")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
	h.inside(path, cmd.Start)
	h.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid)
}

// An interface that was moved on, into a namespace that the container has made,
// is found among those of the processes that can be seen.
func TestFault_F47_AnInterfaceMovedOnIsFound(t *testing.T) {
	for kind, opt := range kindsOf() {
		for _, name := range []string{"macvlan", "host-device"} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				h, c := newRealHost(t), deviceCases()[name]
				c.prepare(h)
				r := h.mixed(opt, cni.WithConfListBytes(c.conf("podnet", "1.0.0", h.path("ipam"))))
				path := h.container("c1")
				before := h.audit()
				h.mustSetup(r, "c1", path)
				inner := h.nested(path)
				h.moveOn(path, "eth0", inner)
				wantNil(t, r.Remove(t.Context(), "c1", path))
				h.wantClean(before)
				wantSame(t, "interfaces of the inner namespace", len(h.linksOf(inner)), 0)
			})
		}
	}
}

func (h *realHost) moveOn(from, name, to string) {
	h.t.Helper()
	ns, err := netns.Open(to)
	wantNil(h.t, err)
	defer ns.Close()
	h.netlinkIn(from, func(nl *netlink.Handle) error {
		l, err := nl.LinkByName(name)
		if err != nil {
			return err
		}
		return nl.LinkSetNsFd(l, int(ns.File().Fd()))
	})
}

// An interface of the host's that is nowhere to be seen, and exists, is reported
// for as long as that is so; and the record stays.
func TestFault_F47_AnInterfaceThatIsNotBackIsReported(t *testing.T) {
	for kind, opt := range kindsOf() {
		t.Run(kind, func(t *testing.T) {
			h, c := newRealHost(t), deviceCases()["host-device"]
			c.prepare(h)
			r := h.mixed(opt, cni.WithConfListBytes(c.conf("podnet", "1.0.0", h.path("ipam"))))
			path, unseen := h.container("c1"), h.container("unseen") // no process is in there
			before := h.audit()
			h.mustSetup(r, "c1", path)
			h.moveOn(path, "eth0", unseen)
			for range 2 {
				err := r.Remove(t.Context(), "c1", path)
				var left *cni.LeftoverError
				if !errors.As(err, &left) || !strings.Contains(err.Error(), "interface up0 of the host") {
					t.Fatalf("error %v, want a LeftoverError that names the interface", err)
				}
				wantSame(t, "on record", recorded(t, r), []string{"c1/eth0 failed"})
			}
			h.moveOn(unseen, "eth0", path)
			wantNil(t, r.Remove(t.Context(), "c1", path))
			h.wantClean(before)
		})
	}
}

// The kernel gives a physical device back to the host under the name that it had
// in the container.
func TestFault_F47_AnInterfaceThatIsBackByAnotherNameGetsItsOwn(t *testing.T) {
	for kind, opt := range kindsOf() {
		t.Run(kind, func(t *testing.T) {
			h, c := newRealHost(t), deviceCases()["host-device"]
			c.prepare(h)
			r := h.mixed(opt, cni.WithConfListBytes(c.conf("podnet", "1.0.0", h.path("ipam"))))
			path := h.container("c1")
			before := h.audit()
			h.mustSetup(r, "c1", path)
			h.moveOn(path, "eth0", h.path("netns", "host"))
			wantNil(t, r.Remove(t.Context(), "c1", path))
			h.wantClean(before)
		})
	}
}

// The interface is back after a Remove that did not get to its end, and another
// container has it now, when the first one is removed again.
func TestFault_F47_ARetriedDelLeavesAnInterfaceThatIsLentAgain(t *testing.T) {
	for kind, opt := range kindsOf() {
		for name, forget := range map[string]bool{"after a failure": false, "after a kill": true} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				h := newRealHost(t)
				h.vethPair("up0", "up1")
				script := h.plugin(scripted.Script{Verbs: map[string]scripted.Action{"DEL": says(5, "stuck")}}, "stuck")
				c := realCase{plugins: []string{`{"type": "host-device", "device": "up0"}`, `{"type": "stuck", "script": "` + script + `"}`}}
				r := h.mixed(opt, cni.WithConfListBytes(c.conf("podnet", "1.0.0", h.path("ipam"))))
				path, other := h.container("c1"), h.container("c2")
				h.mustSetup(r, "c1", path)
				if err := r.Remove(t.Context(), "c1", path); err == nil {
					t.Fatal("Remove succeeded, though a plugin failed")
				}
				if forget {
					h.changeRecord("c1", func(rec *record.Record) {
						fact := strings.Replace(string(rec.Networks[0].Facts["interface"]), `,"settled":true`, "", 1)
						rec.Networks[0].Facts["interface"] = []byte(fact)
					})
				}
				h.plugin(scripted.Script{}, "stuck")
				h.mustSetup(r, "c2", other)
				wantNil(t, r.Remove(t.Context(), "c1", path))
				wantSame(t, "interfaces of c2", h.linksOf(other), []string{"eth0"})
				wantNil(t, r.Remove(t.Context(), "c2", other))
				wantSame(t, "interfaces of the host", h.linksOf(h.path("netns", "host")), []string{"up1", "up0"})
			})
		}
	}
}

// Another program has an interface on the same parent in the container, and
// another container one with the same index. Both stay, whether ours is still
// there or the container has deleted it.
func TestFault_F47_InterfacesThatAreLikeItStay(t *testing.T) {
	for kind, opt := range kindsOf() {
		for name, deleted := range map[string]bool{"there": false, "deleted": true} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				h, c := newRealHost(t), deviceCases()["macvlan"]
				c.prepare(h)
				r := h.mixed(opt, cni.WithConfListBytes(c.conf("podnet", "1.0.0", h.path("ipam"))))
				path, neighbour := h.container("c1"), h.container("c2")
				h.process(neighbour, 0)
				h.mustSetup(r, "c1", path)
				h.mustSetup(r, "c2", neighbour)
				a := netlink.NewLinkAttrs()
				a.Name = "net1"
				up0, err := netlink.LinkByName("up0")
				wantNil(t, err)
				a.ParentIndex = up0.Attrs().Index
				wantNil(t, netlink.LinkAdd(&netlink.Macvlan{LinkAttrs: a, Mode: netlink.MACVLAN_MODE_BRIDGE}))
				h.moveOn(h.path("netns", "host"), "net1", path)
				if deleted {
					h.netlinkIn(path, func(nl *netlink.Handle) error {
						l, err := nl.LinkByName("eth0")
						return errors.Join(err, nl.LinkDel(l))
					})
				}
				wantNil(t, r.Remove(t.Context(), "c1", path))
				wantSame(t, "interfaces of the container", h.linksOf(path), []string{"net1"})
				wantSame(t, "interfaces of the neighbour", h.linksOf(neighbour), []string{"eth0"})
			})
		}
	}
}
