package behaviour_test

import (
	"context"
	"os/exec"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
)

// addressed is a container with its addresses.
type addressed struct{ path, v4, v6 string }

func (h *realHost) attach(r *cni.Runtime, id string, opts ...cni.NamespaceOpts) addressed {
	h.T.Helper()
	path := h.Container(id)
	result, err := r.Setup(context.Background(), id, path, opts...)
	expect.NoError(h.T, err)
	return addressed{path, result.IPv4().IP().String(), result.IPv6().IP().String()}
}

func (h *realHost) detach(r *cni.Runtime, id string) {
	h.T.Helper()
	if err := r.Remove(context.Background(), id, h.Path("netns", id)); err != nil {
		h.T.Error(err)
	}
}

// run runs a tool on the host.
func (h *realHost) run(name string, args ...string) {
	h.T.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		h.T.Fatalf("%s %v: %v: %s; install iptables and nftables", name, args, err, out)
	}
}

// sh runs a script on the host.
func (h *realHost) sh(script string) {
	h.T.Helper()
	if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
		h.T.Fatalf("%s\n%v: %s", script, err, out)
	}
}
