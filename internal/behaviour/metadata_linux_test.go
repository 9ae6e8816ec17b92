package behaviour_test

import (
	"maps"
	"strings"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/testhost"
)

// metadataOf returns the metadata of a container's attachments, by interface.
func metadataOf(t *testing.T, r *cni.Runtime, id string) map[string]map[string]string {
	t.Helper()
	all := expect.Value(r.Attachments())(t)
	found := map[string]map[string]string{}
	for _, a := range all {
		if a.ContainerID == id {
			found[a.IfName] = a.Metadata
		}
	}
	return found
}

// TestSetMetadata: values of the caller's are on record until the container is removed,
// in each process, and only those of its own attachments change.
func TestSetMetadata(t *testing.T) {
	h := newRealHost(t)
	list := cni.WithConfListBytes(dualList(h))
	r := h.Runtime(cni.WithPluginDir(nil), cni.WithLoopback, list)
	other := h.Runtime(cni.WithPluginDir(nil), cni.WithOwner("other"), cni.WithInterfacePrefix("net"), list)
	before := h.Audit()
	path := h.Container("c1")
	testhost.MustSetUp(t, r, "c1", path, cni.WithMetadata(map[string]string{"pod": "p", "pid": ""}))
	testhost.MustSetUp(t, other, "c1", path, cni.WithMetadata(map[string]string{"pid": "other's"}))

	size := recordSize(h, "c1")
	for range 3 { // once is enough
		expect.NoError(t, r.SetMetadata(t.Context(), "c1", map[string]string{"pid": "7", "pidfd": "x"}))
	}
	if grown := recordSize(h, "c1") - size; grown <= 0 || grown > 2048 {
		t.Errorf("the record has grown by %d bytes", grown)
	}
	want := map[string]string{"pod": "p", "pid": "7", "pidfd": "x"}
	others := map[string]string{"pid": "other's"}
	wantAll := map[string]map[string]string{"lo": want, "eth0": want, "net0": others}
	restarted := h.Runtime(cni.WithPluginDir(nil), cni.WithLoopback, list)
	expect.Same(t, "after a restart", metadataOf(t, restarted, "c1"), wantAll)

	for _, values := range []map[string]string{
		{"": "x"}, {"pod": strings.Repeat("x", 4096)}, {"a": strings.Repeat("x", 2048), "b": strings.Repeat("x", 2048)},
	} {
		expect.Is(t, errOf(r.Setup(t.Context(), "c2", path, cni.WithMetadata(values))), cni.ErrInvalidArgument)
		expect.Is(t, r.SetMetadata(t.Context(), "c1", values), cni.ErrInvalidArgument)
	}
	expect.Is(t, r.SetMetadata(t.Context(), "c1", map[string]string{"pod": strings.Repeat("x", 4090)}), cni.ErrInvalidArgument) // with the others
	expect.NoError(t, r.SetMetadata(t.Context(), "c1", nil))
	expect.Same(t, "after invalid values", metadataOf(t, r, "c1"), wantAll)

	third := h.Runtime(cni.WithPluginDir(nil), cni.WithOwner("third"), cni.WithInterfacePrefix("aux"), list)
	expect.Is(t, third.SetMetadata(t.Context(), "c1", want), cni.ErrNotAttached)
	_, err := third.Setup(t.Context(), "c1", path) // it writes the record anew
	expect.NoError(t, err)
	wantAll["aux0"] = nil
	expect.Same(t, "in a new record", metadataOf(t, r, "c1"), wantAll)
	changed := maps.Clone(want)
	changed["pid"] = "8"
	expect.NoError(t, restarted.SetMetadata(t.Context(), "c1", map[string]string{"pid": "8"}))
	expect.Same(t, "changed", metadataOf(t, r, "c1")["eth0"], changed)

	expect.NoError(t, r.Remove(t.Context(), "c1", ""))
	expect.Is(t, r.SetMetadata(t.Context(), "c1", want), cni.ErrNotAttached)
	h.WantClean(before)
}

// TestSetMetadataOfADamagedRecord says so.
func TestSetMetadataOfADamagedRecord(t *testing.T) {
	h := newRealHost(t)
	r := h.Runtime(cni.WithPluginDir(nil), cni.WithConfListBytes(dualList(h)))
	testhost.MustSetUp(t, r, "c1", h.Container("c1"))
	h.SpoilBase("c1", "{")
	expect.Is(t, r.SetMetadata(t.Context(), "c1", map[string]string{"pid": "7"}), record.ErrBad)
}
