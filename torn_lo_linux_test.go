package cni_test

import (
	"fmt"
	"net"
	"os"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/engine/leftovers"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// tornLo is a host after a power cut, with c1 attached to lo alone under a record that
// is torn. Its namespace is a new one, under the same path.
func tornLo(t *testing.T, torn func(whole []byte) []byte) *realHost {
	h := newRealHost(t)
	path := h.Container("c1")
	testhost.MustSetUp(t, h.Real(cni.WithLoNetwork, cni.WithOwner("tester")), "c1", path)
	h.Unpin()
	file := h.RecordFile("c1") + ".json"
	expect.NoError(t, os.WriteFile(file, torn(expect.Value(os.ReadFile(file))(t)), 0o600))
	expect.NoError(t, netns.Remove(path))
	h.Container("c1")
	return h
}

func empty([]byte) []byte { return nil }

// TestATornRecordOfLoAloneIsDead: after a power cut the container is attached again, as
// if it had never been.
func TestATornRecordOfLoAloneIsDead(t *testing.T) {
	for name, torn := range map[string]func([]byte) []byte{
		"empty":      empty,
		"incomplete": func(whole []byte) []byte { return whole[:100] },
		"zeros":      func(whole []byte) []byte { return make([]byte, len(whole)) },
	} {
		for _, cached := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, cached %t", name, cached), func(t *testing.T) {
				h := tornLo(t, torn)
				r := h.Real(cni.WithLoNetwork, cni.WithOwner("tester"))
				if !cached {
					expect.NoError(t, os.RemoveAll(h.Path("state", "results")))
				}
				path := h.Path("netns", "c1")
				testhost.MustSetUp(t, r, "c1", path)
				expect.Same(t, "on record", testhost.Recorded(t, r), []string{"c1/lo attached"})
				expect.NoError(t, r.Check(t.Context(), "c1", path))
				expect.Is(t, testhost.SetUp(t.Context(), r, "c1", path)(), cni.ErrAlreadyAttached)
				expect.NoError(t, r.Remove(t.Context(), "c1", path))
			})
		}
	}
}

// TestATornRecordOfLoAloneTakesNoLoDown: the path may be another container's namespace by
// now, or the caller's, where lo is up.
func TestATornRecordOfLoAloneTakesNoLoDown(t *testing.T) {
	h := tornLo(t, empty)
	path := h.Path("netns", "c1")
	isUp := func(when string) {
		t.Helper()
		expect.Same(t, "lo is up "+when, h.Link(path, "lo").Attrs().Flags&net.FlagUp != 0, true)
	}
	h.Change(path, "lo", (*netlink.Handle).LinkSetUp)
	r := h.Real(cni.WithLoNetwork, cni.WithOwner("tester"))
	testhost.MustSetUp(t, r, "c1", path)
	isUp("after Setup")
	expect.NoError(t, r.Remove(t.Context(), "c1", path))
	isUp("after Remove")
}

// TestATornRecordThatMayBeOfMoreThanLoIsKept at every sign of something else.
func TestATornRecordThatMayBeOfMoreThanLoIsKept(t *testing.T) {
	for name, sign := range map[string]func(h *realHost){
		"an attachment in the log": func(h *realHost) {
			h.entry(record.Entry{ContainerID: "c1", Generation: 1, IfName: "eth0", State: record.Added})
		},
		"an attachment in the ledger": func(h *realHost) {
			h.Entered("tester", leftovers.Line{Key: leftovers.Key{ContainerID: "c1", Network: "pods", IfName: "eth0"}})
		},
		"another interface": func(h *realHost) {
			h.AddLink("c1", "eth0")
		},
		"a kept namespace": func(h *realHost) {
			ns := expect.Value(netns.Open(h.Path("netns", "c1")))(h.T)
			expect.NoError(h.T, netns.Pin(ns, h.Pin("c1")))
			expect.NoError(h.T, ns.Close())
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := tornLo(t, empty)
			sign(h)
			r := h.Real(cni.WithLoNetwork, cni.WithOwner("tester"))
			path := h.Path("netns", "c1")
			expect.Is(t, testhost.SetUp(t.Context(), r, "c1", path)(), cni.ErrAlreadyAttached)
			expect.NoError(t, r.Remove(t.Context(), "c1", path))
			testhost.MustSetUp(t, r, "c1", path)
			expect.NoError(t, r.Remove(t.Context(), "c1", path))
		})
	}
}

// entry appends an entry to the record of c1.
func (h *realHost) entry(e record.Entry) {
	h.T.Helper()
	s := record.Open(h.T.TempDir())
	r := &record.Record{ContainerID: e.ContainerID, Attachments: []record.Attachment{{IfName: e.IfName}}}
	expect.NoError(h.T, s.Begin(r))
	before := expect.Value(os.ReadFile(s.Path(record.Name(e.ContainerID))))(h.T)
	expect.NoError(h.T, s.Append(r, e))
	after := expect.Value(os.ReadFile(s.Path(record.Name(e.ContainerID))))(h.T)
	expect.NoError(h.T, os.WriteFile(h.RecordFile("c1")+".json", after[len(before):], 0o600))
}

// TestRecoverDeletesManyTornRecordsAtOnce: it lists libcni's cache, and logs, once.
func TestRecoverDeletesManyTornRecordsAtOnce(t *testing.T) {
	h := newRealHost(t)
	lo := testhost.ListOfTypes("net", "loopback") // which is cached, unlike that of WithLoNetwork
	r := h.Real(lo, cni.WithBuiltinPlugins(), cni.WithOwner("tester"))
	cached := func(want int) {
		t.Helper()
		expect.Same(t, "files of libcni's cache", len(expect.Value(os.ReadDir(h.Path("state", "results")))(t)), want)
	}
	var want []string
	for i := range 5 {
		id := fmt.Sprint("c", i)
		testhost.MustSetUp(t, r, id, h.Container(id))
		expect.NoError(t, os.Truncate(h.RecordFile(id)+".json", 0))
		want = append(want, "record "+testhost.Hashed(id)+" says nothing and was deleted; if its container is known, Remove or CleanUp finds the leftovers")
	}
	cached(len(want))
	h.Unpin()
	var log testhost.Log
	r = h.Real(lo, cni.WithBuiltinPlugins(), cni.WithOwner("tester"), log.Logger())
	report := expect.Value(r.Recover(t.Context()))(t)
	slices.Sort(want)
	slices.Sort(report.Left)
	expect.Same(t, "left", report.Left, want)
	expect.Same(t, "errors logged", len(log.Lines("ERROR")), 1)
	cached(0)
	expect.Same(t, "on record", testhost.Recorded(t, r), []string{})
}
