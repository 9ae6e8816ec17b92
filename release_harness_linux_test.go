package cni_test

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/netns"
)

// goCNIState is where go-cni has libcni's cache. It has no option for it.
const goCNIState = "/var/lib/cni"

// newReleasing makes a host whose state directory is go-cni's, with the reference
// plugins.
func newReleasing(t *testing.T) *realHost {
	t.Helper()
	h := newRealHost(t)
	goCNIsState(h.host)
	h.installPlugins(true)
	return h
}

// goCNIsState makes the host's state directory go-cni's, in place of the one that
// tests with default directories have left.
func goCNIsState(h *host) {
	h.t.Helper()
	aside := goCNIState + ".aside"
	err := os.Rename(goCNIState, aside)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		h.t.Fatal(err)
	}
	wantNil(h.t, os.MkdirAll(h.path("state"), 0o755))
	wantNil(h.t, os.Symlink(h.path("state"), goCNIState))
	h.t.Cleanup(func() {
		wantNil(h.t, os.Remove(goCNIState))
		if err == nil {
			wantNil(h.t, os.Rename(aside, goCNIState))
		}
	})
}

// named is a network whose backends are named; of unnamed none is.
func (h *realHost) named() cni.Opt {
	return h.podnet(`"ipMasq": true, "ipMasqBackend": "iptables", `, `"backend": "iptables", `, `, "backend": "iptables"`)
}

func (h *realHost) podnet(masq, portmap, firewall string) cni.Opt {
	c := realCase{plugins: []string{bridgeConf(masq + hostLocal(v4Range+","+v6Range)),
		`{"type": "portmap", ` + portmap + `"snat": true, "capabilities": {"portMappings": true}}`,
		`{"type": "firewall"` + firewall + `}`}}
	return cni.WithConfListBytes(c.conf("podnet", "1.0.0", h.path("ipam")))
}

// everything is all there is on the host, with records and pins.
func (h *realHost) everything() audit.Lines {
	h.t.Helper()
	return h.host.audit().Without(func(l string) bool {
		return strings.HasPrefix(l, "fd ") || strings.HasPrefix(l, "process ")
	})
}

// wantRefused wants Release to refuse just this container for that reason, in
// these words, and to change nothing.
func (h *realHost) wantRefused(r *cni.Runtime, id string, is error, says string) {
	h.t.Helper()
	before := h.everything()
	for _, dry := range []bool{true, false} {
		report, err := r.Release(h.t.Context(), cni.ReleaseOptions{DryRun: dry})
		wantNil(h.t, err)
		why := report.Refused[id]
		if why == nil || len(report.Refused) != 1 || len(report.Released) > 0 {
			h.t.Fatalf("released %q, refused %v, want %s to be refused", report.Released, report.Refused, id)
		}
		if !strings.Contains(why.Error(), says) || is != nil && !errors.Is(why, is) {
			h.t.Errorf("got %q, want an error that says %q and is %v", why, says, is)
		}
		if got := report.Err(); got == nil || got.Error() != "container "+id+": "+why.Error() {
			h.t.Errorf("Err: %v", got)
		}
	}
	if added, gone := audit.Diff(before, h.everything()); len(added)+len(gone) > 0 {
		h.t.Errorf("a refused Release has made %q, and removed %q", added, gone)
	}
}

// wantReleased wants just these containers to be released.
func (h *realHost) wantReleased(r *cni.Runtime, ids ...string) {
	h.t.Helper()
	report, err := r.Release(h.t.Context(), cni.ReleaseOptions{})
	wantNil(h.t, err)
	if !slices.Equal(report.Released, ids) || len(report.Refused) > 0 {
		h.t.Fatalf("released %q, want %q, refused: %v", report.Released, ids, report.Err())
	}
	for _, id := range ids {
		if _, err := os.Lstat(h.recordFile(id) + ".json"); !errors.Is(err, fs.ErrNotExist) {
			h.t.Errorf("the record of %s: %v", id, err)
		}
		if _, err := os.Lstat(h.pin(id)); !errors.Is(err, fs.ErrNotExist) {
			h.t.Errorf("the pin of %s: %v", id, err)
		}
	}
}

// wantKept wants a container's pin to lead where its path does.
func (h *realHost) wantKept(id string) {
	h.t.Helper()
	pin, err := netns.Open(h.pin(id))
	wantNil(h.t, err)
	path, err := netns.Open(h.path("netns", id))
	wantNil(h.t, err)
	if pin.ID() != path.ID() {
		h.t.Errorf("%s is kept as %s, and is %s", id, pin.ID(), path.ID())
	}
	wantNil(h.t, errors.Join(pin.Close(), path.Close()))
}
