package cni_test

import (
	"bytes"
	"os"
	"slices"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// host is the test's host, see [testhost.Host], whose methods it has under the
// names that the tests of this package use.
type host struct {
	*testhost.Host
	t   testing.TB
	dir string
}

// newHost makes a host and enters it. The thread is never unlocked: it ends
// with the test's goroutine.
func newHost(t testing.TB) *host {
	t.Helper()
	h := testhost.New(t)
	return &host{Host: h, t: t, dir: h.Dir}
}

func (h *host) unpin()                                      { h.Unpin() }
func (h *host) recordFile(id string) string                 { return h.RecordFile(id) }
func (h *host) pin(id string) string                        { return h.Pin(id) }
func (h *host) newNetNS(name string) *netns.Handle          { h.t.Helper(); return h.NewNetNS(name) }
func (h *host) container(name string) string                { h.t.Helper(); return h.Container(name) }
func (h *host) path(elem ...string) string                  { return h.Path(elem...) }
func (h *host) write(name, content string) string           { h.t.Helper(); return h.Write(name, content) }
func (h *host) runtime(opts ...cni.Opt) *cni.Runtime        { h.t.Helper(); return h.Runtime(opts...) }
func (h *host) calls() []scripted.Call                      { h.t.Helper(); return h.Calls() }
func (h *host) takeCalls() []scripted.Call                  { h.t.Helper(); return h.TakeCalls() }
func (h *host) audit() audit.Lines                          { h.t.Helper(); return h.Audit() }
func (h *host) since(before audit.Lines) (_, _ audit.Lines) { h.t.Helper(); return h.Since(before) }
func (h *host) wantClean(before audit.Lines)                { h.t.Helper(); h.WantClean(before) }

func (h *host) plugin(script scripted.Script, types ...string) string {
	h.t.Helper()
	return h.Plugin(script, types...)
}

func (h *host) scriptedList(name, version string, script scripted.Script, types ...string) []byte {
	h.t.Helper()
	return h.ScriptedList(name, version, script, types...)
}

func hashed(id string) string              { return testhost.Hashed(id) }
func verbs(calls []scripted.Call) []string { return testhost.Verbs(calls) }
func answering(verb, answer string, code int) scripted.Script {
	return testhost.Answering(verb, answer, code)
}

func conflist(name, version string, scripts map[string]string, types ...string) []byte {
	return testhost.Conflist(name, version, scripts, types...)
}

// unrecord makes a container one without a record and a kept namespace, as one
// that go-cni attached.
func (h *host) unrecord(id string) {
	h.t.Helper()
	if err := os.Remove(h.recordFile(id) + ".json"); err != nil {
		h.t.Fatal(err)
	}
	if err := netns.Remove(h.pin(id)); err != nil {
		h.t.Fatal(err)
	}
}

// spoilBase puts content in place of the first line of a container's record, and
// leaves its log.
func (h *host) spoilBase(id, content string) {
	h.t.Helper()
	path := h.recordFile(id) + ".json"
	data, err := os.ReadFile(path)
	wantNil(h.t, err)
	_, log, _ := bytes.Cut(data, []byte("\n"))
	wantNil(h.t, os.WriteFile(path, slices.Concat([]byte(content), []byte("\n"), log), 0o600))
}
