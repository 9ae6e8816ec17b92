package behaviour_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

// maker is a stage with a network, for containers in namespaces that Setup makes.
type maker struct {
	*stage
	*cni.Runtime
	before audit.Lines
}

func newMaker(t *testing.T, opts ...cni.Opt) *maker {
	t.Helper()
	s := newStage(t)
	r := s.Runtime(append([]cni.Opt{cni.WithOwner("tester"), cni.WithConfListBytes(s.Network("net", "1.1.0", "first"))}, opts...)...)
	return &maker{s, r, s.Audit()}
}

// Setup is that of the Runtime, with the option.
func (m *maker) Setup(id, path string, opts ...cni.NamespaceOpts) (*cni.Result, error) {
	return m.Runtime.Setup(m.T.Context(), id, path, append(opts, cni.WithNewNetNS())...)
}

func (m *maker) idAt(path string) netns.ID {
	m.T.Helper()
	h := expect.Value(netns.Open(path))(m.T)
	expect.NoError(m.T, h.Close())
	return h.ID()
}

// recordedAs returns the identity of the recorded namespace.
func (m *maker) recordedAs(id string) netns.ID {
	m.T.Helper()
	return expect.Value(m.Records().Load(record.ID(id)))(m.T).NetNS.ID()
}

// TestCleanUpDeletesTheNamespace with the last attachment. Without a record, Remove asks the
// plugins of the loaded networks.
func TestCleanUpDeletesTheNamespace(t *testing.T) {
	m := newMaker(t)
	result := expect.Value(m.Setup("c1", ""))(t)
	m.On("first", "DEL", testhost.Says(5, "gone for good"))
	err := m.Remove(t.Context(), "c1", "")
	expect.That(t, errors.As(err, new(*cni.LeftoverError)), "Remove: %v", err)
	expect.That(t, expect.Exists(t, result.NetNS), "the namespace is gone before CleanUp")
	expect.Value(m.CleanUp(t.Context(), cni.CleanUpTarget{ContainerID: "c1", Network: "net", IfName: "eth0"}))(t)
	expect.That(t, !expect.Exists(t, result.NetNS), "the namespace is still there")
	expect.Says(t, "Remove afterwards", m.Remove(t.Context(), "c1", ""), "gone for good")
	m.WantClean(m.before)
}

func TestSetupMakesTheNamespaceThatRemoveDeletes(t *testing.T) {
	for _, chosen := range []bool{false, true} {
		m := newMaker(t)
		path, want := "", m.Pin("c1")
		if chosen {
			path = m.Path("netns", "c1")
			want = path
		}
		result := expect.Value(m.Setup("c1", path))(t)
		expect.Same(t, "path", result.NetNS, want)
		expect.Same(t, "namespace", m.idAt(want), m.recordedAs("c1"))
		expect.Same(t, "Lookup", expect.Value(m.Lookup("c1"))(t), result)
		calls := m.Calls()
		expect.Same(t, "CNI_NETNS", calls[len(calls)-1].NetNS, want)
		expect.Same(t, "Attachments", expect.Value(m.Attachments())(t)[0].NetNS, want)
		m.TakeCalls()
		expect.NoError(t, m.Check(t.Context(), "c1", want), m.Check(t.Context(), "c1", ""))
		calls = m.TakeCalls()
		expect.Same(t, "calls of Check", testhost.Rendered(calls), []string{"CHECK first c1/eth0", "CHECK first c1/eth0"})
		expect.Same(t, "CNI_NETNS without a path", calls[1].NetNS, want)
		expect.Says(t, "Check of nothing", m.Check(t.Context(), "c2", ""),
			`check container "c2": no path given; name the container's namespace: invalid network namespace; and it is not attached`)

		// It is the container's as if the caller had made it.
		m.addLinkAt(want, "eth0") // the scripted plugin makes none
		expect.Is(t, errOf(m.Setup("c1", path)), cni.ErrAlreadyAttached)
		expect.Is(t, errOf(m.Setup("c1", "", cni.WithNetwork("net", cni.WithInterfaceName("eth7")))), cni.ErrAlreadyAttached)
		ns := expect.Value(netns.Open(want))(t)
		more := testhost.MustSetUp(t, m.Runtime, "c1", m.elsewhere(ns), cni.WithNetwork("net", cni.WithInterfaceName("eth7")))
		expect.Same(t, "path of one more interface", more.NetNS, want)
		expect.NoError(t, ns.Close())
		expect.NoError(t, netns.Remove(m.Path("netns", "elsewhere")))

		expect.Same(t, "Recover", expect.Value(m.Recover(t.Context()))(t).Adopted, []string{"c1"})
		for range 2 {
			expect.NoError(t, m.Remove(t.Context(), "c1", ""))
		}
		m.WantClean(m.before)
	}
}

// elsewhere mounts a namespace at another path.
func (m *maker) elsewhere(ns *netns.Handle) string {
	m.T.Helper()
	path := m.Path("netns", "elsewhere")
	expect.NoError(m.T, netns.Pin(ns, path))
	return path
}

func TestAPathThatExistsIsRefused(t *testing.T) {
	m := newMaker(t)
	m.Container("another")
	write(m.Host, "empty", "")
	expect.NoError(t, os.Symlink(m.Path("nowhere"), m.Path("link")))
	m.before = m.Audit()
	for _, path := range []string{m.Path("netns", "another"), m.Path("empty"), m.Path("bin"), m.Path("link"), "relative", m.Path("empty", "x")} {
		_, err := m.Setup("c1", path)
		expect.Is(t, err, cni.ErrInvalidNetNS)
		if strings.HasPrefix(path, m.Dir) && filepath.Base(path) != "x" {
			expect.Is(t, err, fs.ErrExist)
		}
		expect.Same(t, path+": calls", len(m.Calls()), 0)
		expect.Same(t, path+": on record", testhost.Recorded(t, m.Runtime), []string{})
	}
	expect.Is(t, errOf(m.Runtime.Setup(t.Context(), "c1", "", cni.WithNetwork("net", cni.WithNewNetNS()))), cni.ErrInvalidArgument)
	expect.Same(t, "the empty file", expect.Exists(t, m.Path("empty")), true)
	// Of two containers that want one path, the second is refused.
	path := m.Path("netns", "new")
	expect.Value(m.Setup("c1", path))(t)
	want := m.idAt(path)
	expect.Is(t, errOf(m.Setup("c2", path)), fs.ErrExist)
	expect.Same(t, "the first one's", m.idAt(path), want)
	expect.NoError(t, m.Remove(t.Context(), "c2", path))
	expect.Same(t, "the first one's, after the second was removed", m.idAt(path), want)
	expect.NoError(t, m.Remove(t.Context(), "c1", ""))
	m.WantClean(m.before)
}

// TestThePathThatSetupChoseMayBeGiven to a later Setup, however it is spelled: a caller that
// has stored it gives it again after a Remove, and after a reboot. The paths of other
// containers are refused.
func TestThePathThatSetupChoseMayBeGiven(t *testing.T) {
	for _, made := range []bool{false, true} { // the directory of the pins
		m := newMaker(t)
		own, another := m.Pin("c1"), m.Pin("c2")
		expect.NoError(t, os.Symlink(m.Path("state"), m.Path("link")))
		spelled := m.Path("link") + strings.TrimPrefix(own, m.Path("state"))
		if spelled == own || !strings.HasPrefix(own, m.Path("state")) {
			t.Fatalf("%s is not below %s", own, m.Path("state"))
		}
		if made {
			expect.NoError(t, os.MkdirAll(filepath.Dir(own), 0o700))
		}
		m.before = m.Audit()
		expect.Is(t, expect.Err(m.Setup("c1", another)), cni.ErrInvalidNetNS)
		expect.Same(t, "calls", len(m.Calls()), 0)
		for _, path := range []string{own, spelled, filepath.Dir(own) + "/./" + filepath.Base(own), own + "/"} {
			expect.Same(t, "path", expect.Value(m.Setup("c1", path))(t).NetNS, own)
			expect.Same(t, "namespace", m.idAt(own), m.recordedAs("c1"))
			m.addLinkAt(own, "eth0")
			expect.Is(t, expect.Err(m.Setup("c1", path)), cni.ErrAlreadyAttached)
			expect.NoError(t, m.Remove(t.Context(), "c1", path))
			expect.Same(t, "pin", expect.Exists(t, own), false)
		}
		// The file alone is left after a reboot.
		expect.NoError(t, os.WriteFile(own, nil, 0o444))
		expect.Value(m.Setup("c1", own))(t)
		expect.NoError(t, m.Remove(t.Context(), "c1", own))
		m.WantClean(m.before)
	}
}

func TestASetupThatFailsDeletesTheNamespaceThatItMade(t *testing.T) {
	for _, path := range []string{"", "c1"} {
		m := newMaker(t, cni.WithRetry(cni.Retry{Attempts: 3, Delay: 1}))
		if path != "" {
			path = m.Path("netns", path)
		}
		m.On("first", "ADD", testhost.Says(11, "try again later"))
		expect.Same(t, "errors", testhost.Messages(expect.Err(m.Setup("c1", path))), []string{"first: try again later"})
		expect.Same(t, "calls", testhost.Rendered(m.Calls()), slices.Repeat([]string{"ADD first c1/eth0", "DEL first c1/eth0"}, 3))
		var in []string
		for _, call := range m.TakeCalls() {
			in = append(in, call.NetNS)
		}
		want := path
		if want == "" {
			want = m.Pin("c1")
		}
		expect.Same(t, "CNI_NETNS", in, []string{want, want, want, want, want, want})
		m.WantClean(m.before)
	}
}

// TestALaterAttemptMakesItsOwnNamespace, which is on record, and goes with the container.
func TestALaterAttemptMakesItsOwnNamespace(t *testing.T) {
	for _, chosen := range []bool{false, true} {
		m := newMaker(t)
		var in []netns.ID
		add := func(_ context.Context, r *plugin.Request) error {
			if in = append(in, r.Container.ID()); len(in) == 1 {
				return plugin.Errorf(11, "try again later")
			}
			return nil
		}
		m.Runtime = m.stage.Runtime(cni.WithOwner("tester"), cni.WithRetry(cni.Retry{Attempts: 2, Delay: 1}), testhost.ListOfTypes("net", "p"),
			cni.WithPlugin("p", testhost.Acting{On: map[string]testhost.Action{"ADD": add}}))
		path := ""
		if chosen {
			path = m.Path("netns", "c1")
		}
		result := expect.Value(m.Setup("c1", path))(t)
		expect.Same(t, "attempts", len(in), 2)
		expect.Same(t, "of the second", m.idAt(result.NetNS), in[1])
		expect.Same(t, "on record", m.recordedAs("c1"), in[1])

		// A runtime that is killed leaves it to the next.
		m.ChangeRecord("c1", func(rec *record.Record) {
			rec.Runtime, rec.Life, rec.Attachments[0].State = "1:1", "", record.Planned
		})
		report := expect.Value(m.Recover(t.Context()))(t)
		expect.Same(t, "removed", report.Removed, []string{"c1"})
		m.WantClean(m.before)
	}
}

// TestANamespaceOutlivesItsAttachments if the container is attached in it again: by a
// Setup with its path, after the interface was lost, and by a replacement.
func TestANamespaceOutlivesItsAttachments(t *testing.T) {
	for what, again := range attachings() {
		for _, chosen := range []bool{false, true} {
			m := newMaker(t)
			path, want := m.made(chosen)
			leave := inhabit(m.T, path)
			expect.Same(t, what+": path", expect.Value(again(t.Context(), m, path))(t).NetNS, path)
			expect.Same(t, what+": namespace", m.idAt(path), want)
			leave()
			expect.NoError(t, m.Remove(t.Context(), "c1", ""))
			m.WantClean(m.before)
		}
	}
}

// TestOnlyTheRecordedNamespaceIsDeleted: whatever else is at its path by now stays.
func TestOnlyTheRecordedNamespaceIsDeleted(t *testing.T) {
	path := func(m *maker) string { return m.Path("netns", "c1") }
	anothers := func(m *maker) {
		h, err := netns.Create(path(m))
		expect.NoError(m.T, errors.Join(err, h.Close()))
		m.T.Cleanup(func() { expect.NoError(m.T, netns.Remove(path(m))) })
	}
	for what, tt := range map[string]struct {
		happens func(m *maker)
		stays   bool
	}{
		"deleted by another": {func(m *maker) { expect.NoError(m.T, netns.Remove(path(m))) }, false},
		"another's by now": {func(m *maker) {
			expect.NoError(m.T, netns.Remove(path(m)))
			anothers(m)
		}, true},
		"another's on top": {func(m *maker) {
			expect.NoError(m.T, unix.Mount(m.Container("another"), path(m), "", unix.MS_BIND, ""))
			m.T.Cleanup(func() { expect.NoError(m.T, netns.Remove(path(m))) })
		}, true},
		"an empty file, on which another is about to mount": {func(m *maker) {
			expect.NoError(m.T, netns.Remove(path(m)))
			expect.NoError(m.T, os.WriteFile(path(m), nil, 0o444))
		}, true},
		"after a reboot, another's with its number": {func(m *maker) {
			expect.NoError(m.T, errors.Join(netns.Remove(m.Pin("c1")), netns.Remove(path(m))))
			anothers(m)
			id := m.idAt(path(m))
			m.ChangeRecord("c1", func(rec *record.Record) { rec.Boot, rec.NetNS.Dev, rec.NetNS.Ino = "earlier", id.Dev, id.Ino })
		}, true},
		"after a reboot, its file": {func(m *maker) {
			expect.NoError(m.T, errors.Join(netns.Remove(m.Pin("c1")), nettest.Unpin(path(m))))
			m.ChangeRecord("c1", func(rec *record.Record) { rec.Boot = "earlier" })
		}, false},
	} {
		t.Run(what, func(t *testing.T) {
			m := newMaker(t)
			expect.Value(m.Setup("c1", path(m)))(t)
			tt.happens(m)
			before, _ := os.Lstat(path(m))
			expect.NoError(t, m.Remove(t.Context(), "c1", path(m)))
			expect.Same(t, "stays", expect.Exists(t, path(m)), tt.stays)
			after, _ := os.Lstat(path(m))
			expect.Same(t, "the same", os.SameFile(before, after), tt.stays)
			expect.Same(t, "pin", expect.Exists(t, m.Pin("c1")), false)
			expect.Same(t, "on record", testhost.Recorded(t, m.Runtime), []string{})
		})
	}
}

// TestAProcessInTheNamespaceOutlivesRemove, in a namespace without a path, as after
// `ip netns del`.
func TestAProcessInTheNamespaceOutlivesRemove(t *testing.T) {
	m := newMaker(t)
	path := m.Path("netns", "c1")
	expect.Value(m.Setup("c1", path))(t)
	leave := inhabit(m.T, path)
	defer leave()
	expect.NoError(t, m.Remove(t.Context(), "c1", ""))
	expect.Same(t, "path", expect.Exists(t, path), false)
	leave()
	m.WantClean(m.before)
}
