package behaviour_test

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// goCNIState is the directory of go-cni's libcni cache. go-cni has no option
// for it.
const goCNIState = "/var/lib/cni"

// newReleasing makes a host with the reference plugins and go-cni's state
// directory.
func newReleasing(t *testing.T) *realHost {
	t.Helper()
	h := newRealHost(t)
	goCNIsState(h.Host)
	h.installPlugins(true)
	return h
}

// goCNIsState replaces the state directory that earlier tests with default
// directories have left by an empty one of go-cni's.
func goCNIsState(h *testhost.Host) {
	h.T.Helper()
	aside := goCNIState + ".aside"
	err := os.Rename(goCNIState, aside)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		h.T.Fatal(err)
	}
	expect.NoError(h.T, os.MkdirAll(h.Path("state"), 0o755))
	expect.NoError(h.T, os.Symlink(h.Path("state"), goCNIState))
	h.T.Cleanup(func() {
		expect.NoError(h.T, os.Remove(goCNIState))
		if err == nil {
			expect.NoError(h.T, os.Rename(aside, goCNIState))
		}
	})
}

// named is a network whose backends are named. The one of unnamed names none.
func (h *realHost) named() cni.Opt {
	return h.podnet(`"ipMasq": true, "ipMasqBackend": "iptables", `, `"backend": "iptables", `, `, "backend": "iptables"`)
}

func (h *realHost) podnet(masq, portmap, firewall string) cni.Opt {
	c := testhost.Case{Plugins: []string{testhost.BridgeConf(masq + testhost.HostLocal(testhost.V4Range+","+testhost.V6Range)),
		`{"type": "portmap", ` + portmap + `"snat": true, "capabilities": {"portMappings": true}}`,
		`{"type": "firewall"` + firewall + `}`}}
	return cni.WithConfListBytes(c.Conf("podnet", "1.0.0", h.Path("ipam")))
}

// everything lists the whole host, including records and pins.
func (h *realHost) everything() audit.Lines {
	h.T.Helper()
	return h.Host.Audit().Without(func(l string) bool {
		return strings.HasPrefix(l, "fd ") || strings.HasPrefix(l, "process ")
	})
}

// wantRefused checks that Release refuses exactly this container for this
// reason and with this text, and changes nothing.
func (h *realHost) wantRefused(r *cni.Runtime, id string, is error, says string) {
	h.T.Helper()
	before := h.everything()
	for _, dry := range []bool{true, false} {
		report, err := r.Release(h.T.Context(), cni.ReleaseOptions{DryRun: dry})
		expect.NoError(h.T, err)
		why := report.Refused[id]
		if why == nil || len(report.Refused) != 1 || len(report.Released) > 0 {
			h.T.Fatalf("released %q, refused %v, want %s to be refused", report.Released, report.Refused, id)
		}
		if !strings.Contains(why.Error(), says) || is != nil && !errors.Is(why, is) {
			h.T.Errorf("got %q, want an error that says %q and is %v", why, says, is)
		}
		if got := report.Err(); got == nil || got.Error() != "container "+id+": "+why.Error() {
			h.T.Errorf("Err: %v", got)
		}
	}
	if added, gone := audit.Diff(before, h.everything()); len(added)+len(gone) > 0 {
		h.T.Errorf("a refused Release has made %q, and removed %q", added, gone)
	}
}

// wantReleased checks that exactly these containers are released.
func (h *realHost) wantReleased(r *cni.Runtime, ids ...string) {
	h.T.Helper()
	report, err := r.Release(h.T.Context(), cni.ReleaseOptions{})
	expect.NoError(h.T, err)
	if !slices.Equal(report.Released, ids) || len(report.Refused) > 0 {
		h.T.Fatalf("released %q, want %q, refused: %v", report.Released, ids, report.Err())
	}
	for _, id := range ids {
		if _, err := os.Lstat(h.RecordFile(id) + ".json"); !errors.Is(err, fs.ErrNotExist) {
			h.T.Errorf("the record of %s: %v", id, err)
		}
		if _, err := os.Lstat(h.Pin(id)); !errors.Is(err, fs.ErrNotExist) {
			h.T.Errorf("the pin of %s: %v", id, err)
		}
	}
}

// wantKept checks that a container's pin and path lead to the same namespace.
func (h *realHost) wantKept(id string) {
	h.T.Helper()
	pin, err := netns.Open(h.Pin(id))
	expect.NoError(h.T, err)
	path, err := netns.Open(h.Path("netns", id))
	expect.NoError(h.T, err)
	if pin.ID() != path.ID() {
		h.T.Errorf("%s is kept as %s, and is %s", id, pin.ID(), path.ID())
	}
	expect.NoError(h.T, errors.Join(pin.Close(), path.Close()))
}
