package oracle

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	gocni "github.com/containerd/go-cni"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// TestDuty_R16_AttachmentsThatGoCNIMadeCount, although only libcni's cache has
// them.
func TestDuty_R16_AttachmentsThatGoCNIMadeCount(t *testing.T) {
	testhost.LeavesNothingRunning(t)
	h := &host{testhost.New(t)}
	conf := h.scriptedList("net", "1.0.0", scripted.Script{}, "p")
	const id = "by-go-cni"
	path, ctx := h.Path("netns", "c1"), context.Background()
	ns := expect.Value(netns.Create(path))(t)
	old := expect.Value(gocni.New(gocni.WithPluginDir([]string{h.Path("bin")}), gocni.WithConfListBytes(conf)))(t)
	r := h.Runtime(cni.WithHostNetNS(h.Path("netns", "host")), cni.WithStateDir("/var/lib/cni"), cni.WithConfListBytes(conf))
	t.Cleanup(func() {
		if err := os.RemoveAll("/var/lib/cni"); err != nil { // a tmpfs of the sandbox
			t.Error(err)
		}
	})
	expect.Value(old.Setup(ctx, id, path, gocni.WithArgs("K", "v")))(t)
	h.addLink(ns, "eth0")
	h.TakeCalls()

	expect.Is(t, expect.Err(r.Setup(ctx, id, path)), cni.ErrAlreadyAttached)
	expect.NoError(t, r.Check(ctx, id, path))
	h.wantCalls("CHECK p " + id + "/eth0")

	expect.NoError(t, errors.Join(netns.Remove(path), ns.Close()))
	expect.Value(r.Setup(ctx, id, h.Container("c2")))(t)
	del := h.wantCalls("DEL p "+id+"/eth0", "ADD p "+id+"/eth0")
	expect.Same(t, "arguments at DEL", del.Args, "K=v")
	expect.NoError(t, r.Remove(ctx, id, h.Path("netns", "c2")))
}

// wantCalls compares the calls since the last time, and returns the first.
func (h *host) wantCalls(want ...string) scripted.Call {
	h.T.Helper()
	calls := h.TakeCalls()
	var got []string
	for _, c := range calls {
		got = append(got, fmt.Sprintf("%s %s %s/%s", c.Verb, c.Type, c.ContainerID, c.IfName))
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		h.T.Fatalf("calls %q, want %q", got, want)
	}
	return calls[0]
}

// TestCompat_FieldsOfAnotherTypeAreLoadedWhereGoCNILoadsThem: the tests of
// loading use libcni in place of go-cni.
func TestCompat_FieldsOfAnotherTypeAreLoadedWhereGoCNILoadsThem(t *testing.T) {
	refused := 0
	for _, typ := range []string{"own", "bridge", "portmap"} {
		for _, field := range testhost.OddFields() {
			list := fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "n1", "plugins": [{"type": %q, %s}]}`, typ, field)
			_, theirs := gocni.New(gocni.WithConfListBytes(list))
			_, ours := cni.New(cni.WithConfListBytes(list))
			if (ours == nil) != (theirs == nil) {
				t.Errorf("%s with %s: ours %v, go-cni %v", typ, field, ours, theirs)
			}
			if theirs != nil {
				refused++
			}
		}
	}
	if all := 3 * len(testhost.OddFields()); refused == 0 || refused == all {
		t.Errorf("go-cni refuses %d of %d: this compares too little", refused, all)
	}
}
