package behaviour_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/reconcile"
)

// attachings are the ways to attach c1 again in the namespace that Setup made for it.
func attachings() map[string]func(ctx context.Context, m *maker, path string) (*cni.Result, error) {
	return map[string]func(ctx context.Context, m *maker, path string) (*cni.Result, error){
		"Setup": func(ctx context.Context, m *maker, path string) (*cni.Result, error) {
			return m.Runtime.Setup(ctx, "c1", path)
		},
		"Reconcile": func(ctx context.Context, m *maker, path string) (*cni.Result, error) {
			report, err := reconcile.Run(ctx, m.Runtime, []reconcile.Expected{{ContainerID: "c1", NetNS: path, Options: []cni.NamespaceOpts{cni.WithNewNetNS()}}},
				always(reconcile.Replace))
			if err != nil {
				return nil, err
			}
			return report.Containers[0].Result, report.Containers[0].Err
		},
	}
}

// made attaches c1 in a namespace that Setup makes, at a chosen path or not.
func (m *maker) made(chosen bool) (path string, id netns.ID) {
	m.T.Helper()
	if chosen {
		path = m.Path("netns", "c1")
	}
	result := expect.Value(m.Setup("c1", path))(m.T)
	return result.NetNS, m.idAt(result.NetNS)
}

// wantOnRecord checks that the namespace is at the path, and on record.
func (m *maker) wantOnRecord(what, path string, id netns.ID) {
	m.T.Helper()
	expect.Same(m.T, what+": at its path", m.idAt(path), id)
	rec := expect.Value(m.Records().Load("c1"))(m.T)
	if rec == nil {
		m.T.Errorf("%s: the namespace at %s is on no record", what, path)
		return
	}
	expect.Same(m.T, what+": on record", rec.NetNS.ID(), id)
	expect.Same(m.T, what+": made by Setup", rec.NetNS.Ours, true)
}

// TestANamespaceStaysOnRecordWhereverAnAttemptFails, so that Remove deletes it, and the
// next attempt finds it.
func TestANamespaceStaysOnRecordWhereverAnAttemptFails(t *testing.T) {
	failures := map[string]func(m *maker, ctx context.Context) context.Context{
		"ADD": func(m *maker, ctx context.Context) context.Context {
			m.On("first", "ADD", testhost.Says(5, "no"))
			return ctx
		},
		"ADD and its DEL": func(m *maker, ctx context.Context) context.Context {
			m.On("first", "ADD", testhost.Says(5, "no"))
			m.On("first", "DEL", testhost.Says(5, "not even that"))
			return ctx
		},
		"the DEL of the attachment before": func(m *maker, ctx context.Context) context.Context {
			m.On("first", "DEL", testhost.Says(5, "no"))
			return ctx
		},
		"the result": func(m *maker, ctx context.Context) context.Context {
			nothing := `{"cniVersion": "1.1.0", "interfaces": [{"name": "eth0"}], "ips": [{"address": "10.1.2.3/24", "interface": 7}]}`
			m.On("first", "ADD", scripted.Action{Stdout: &nothing})
			return ctx
		},
		"the context": func(m *maker, ctx context.Context) context.Context {
			m.On("first", "ADD", scripted.Action{Hang: true})
			ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			m.T.Cleanup(cancel)
			return ctx
		},
		"the context, before it begins": func(m *maker, ctx context.Context) context.Context {
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			return ctx
		},
	}
	for way, again := range attachings() {
		for step, fail := range failures {
			for _, chosen := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, %s fails, chosen path %v", way, step, chosen), func(t *testing.T) {
					m := newMaker(t)
					path, id := m.made(chosen)
					for range 2 {
						fails(t, errOf(again(fail(m, t.Context()), m, path)))
						m.wantOnRecord("after a failure", path, id)
						m.On("first", "ADD", scripted.Action{})
						m.On("first", "DEL", scripted.Action{})
					}
					expect.Same(t, "path that Setup made", expect.Value(again(t.Context(), m, path))(t).NetNS, path)
					m.wantOnRecord("attached again", path, id)
					expect.Same(t, "failed again", expect.Err(again(fail(m, t.Context()), m, path)) != nil, true)
					m.On("first", "DEL", scripted.Action{})
					expect.NoError(t, m.Remove(t.Context(), "c1", path))
					expect.Same(t, "path after Remove", expect.Exists(t, path), false)
					m.WantClean(m.before)
				})
			}
		}
	}
}

// TestAnUnattachedNamespaceGoes with all that ends a container, and is no attachment.
func TestAnUnattachedNamespaceGoes(t *testing.T) {
	for what, end := range map[string]func(m *maker, path string) error{
		"Remove": func(m *maker, _ string) error { return m.Remove(m.T.Context(), "c1", "") },
		"Recover": func(m *maker, _ string) error {
			wantRecover(m.T, m.Runtime, cni.Report{Removed: []string{"c1"}})
			return nil
		},
		"GC": func(m *maker, _ string) error { return errOf(m.GC(m.T.Context(), cni.GCOptions{KeepNone: true})) },
		"Setup in a new one": func(m *maker, path string) error {
			at := ""
			if path != m.Pin("c1") {
				at = path
			}
			before := m.idAt(path)
			result, err := m.Setup("c1", at)
			if err != nil {
				return err
			}
			expect.Same(m.T, "another namespace", m.idAt(result.NetNS) != before, true)
			return m.Remove(m.T.Context(), "c1", "")
		},
		"Setup in another": func(m *maker, path string) error {
			_, err := m.Runtime.Setup(m.T.Context(), "c1", m.Path("netns", "another"))
			if path != m.Pin("c1") { // otherwise the other one is pinned there
				expect.Same(m.T, "path", expect.Exists(m.T, path), false)
			}
			return errors.Join(err, m.Remove(m.T.Context(), "c1", ""))
		},
		"a reboot": func(m *maker, path string) error {
			m.ChangeRecord("c1", func(rec *record.Record) { rec.Boot = "earlier" })
			expect.NoError(m.T, nettest.Unpin(path))
			if pin := m.Pin("c1"); pin != path {
				expect.NoError(m.T, nettest.Unpin(pin))
			}
			wantRecover(m.T, m.Runtime, cni.Report{Removed: []string{"c1"}})
			return nil
		},
	} {
		for _, chosen := range []bool{false, true} {
			m := newMaker(t)
			m.Container("another")
			m.before = m.Audit()
			path, id := m.made(chosen)
			m.On("first", "ADD", testhost.Says(5, "no"))
			expect.Same(t, "failed", expect.Err(m.Runtime.Setup(t.Context(), "c1", path)) != nil, true)
			m.On("first", "ADD", scripted.Action{})

			m.wantOnRecord(what, path, id)
			expect.Same(t, "attachments", testhost.Recorded(t, m.Runtime), []string{})
			expect.Is(t, expect.Err(m.Lookup("c1")), cni.ErrNotAttached)
			health := expect.Value(m.Health(t.Context(), cni.HealthOptions{Containers: []string{"c1"}}))(t)
			expect.Same(t, "state", health[0].State, cni.StateNotAttached)
			expect.Value(m.GC(t.Context(), cni.GCOptions{Keep: []string{"c1"}}))(t)
			m.wantOnRecord("kept by GC", path, id)

			expect.NoError(t, end(m, path))
			expect.Same(t, what+": path", expect.Exists(t, path), false)
			expect.Same(t, what+": pin", expect.Exists(t, m.Pin("c1")), false)
			m.WantClean(m.before)
		}
	}
}

// TestARuntimeKilledInAReplacement leaves a namespace in which a task lives to the next
// one, which keeps it until the task has ended.
func TestARuntimeKilledInAReplacement(t *testing.T) {
	in := func(state record.State) func(*maker, string) {
		return func(m *maker, _ string) {
			m.ChangeRecord("c1", func(rec *record.Record) {
				rec.Runtime, rec.Life, rec.NetNS.InUse, rec.Attachments[0].State = "1:1", "", true, state
			})
		}
	}
	for step, kill := range map[string]func(m *maker, path string){
		"while it detaches": in(record.Deleting),
		"in between": func(m *maker, path string) {
			m.On("first", "ADD", testhost.Says(5, "no"))
			expect.Same(m.T, "failed", expect.Err(m.Runtime.Setup(m.T.Context(), "c1", path)) != nil, true)
			m.On("first", "ADD", scripted.Action{})
			m.ChangeRecord("c1", func(rec *record.Record) {
				rec.Runtime, rec.Life = "1:1", ""
				expect.Same(m.T, "attachments", len(rec.Attachments), 0)
			})
		},
		"while it attaches": in(record.Planned),
	} {
		for _, chosen := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, chosen path %v", step, chosen), func(t *testing.T) {
				m := newMaker(t)
				path, id := m.made(chosen)
				leave := inhabit(m.T, path)
				defer leave()
				kill(m, path)
				for range 2 {
					report := expect.Value(m.Recover(t.Context()))(t)
					expect.Is(t, report.Kept["c1"], cni.ErrNotAttached)
					expect.Same(t, "adopted", report.Adopted, []string{"c1"})
					m.wantOnRecord("while the task lives", path, id)
				}
				for way, again := range attachings() {
					expect.Same(t, way+": path", expect.Value(again(t.Context(), m, path))(t).NetNS, path)
					expect.NoError(t, m.Check(t.Context(), "c1", path))
					kill(m, path)
					expect.Value(m.GC(t.Context(), cni.GCOptions{Keep: []string{"c1"}}))(t)
					m.wantOnRecord("after a GC that keeps it", path, id)
				}
				leave()
				expect.Same(t, "removed", expect.Value(m.Recover(t.Context()))(t).Removed, []string{"c1"})
				expect.Same(t, "path", expect.Exists(t, path), false)
				m.WantClean(m.before)
			})
		}
	}
}

// TestARemoveThatIsKilled is finished by Recover, although a process is in the namespace,
// and although the container was attached there again before.
func TestARemoveThatIsKilled(t *testing.T) {
	m := newMaker(t)
	path, _ := m.made(true)
	testhost.MustSetUp(t, m.Runtime, "c1", path)
	leave := inhabit(m.T, path)
	defer leave()
	expect.Same(t, "in use", expect.Value(m.Records().Load("c1"))(t).NetNS.InUse, true)
	m.On("first", "DEL", testhost.Says(5, "no"))
	expect.Same(t, "failed", m.Remove(t.Context(), "c1", "") != nil, true)
	m.On("first", "DEL", scripted.Action{})
	m.ChangeRecord("c1", func(rec *record.Record) {
		expect.Same(t, "in use, by Remove", rec.NetNS.InUse, false)
		rec.Attachments[0].Failures = 0
	})
	wantRecover(t, m.Runtime, cni.Report{Removed: []string{"c1"}})
	expect.Same(t, "path", expect.Exists(t, path), false)
	leave()
	m.WantClean(m.before)
}
