package behaviour_test

import (
	"context"
	"os/exec"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/testhost"
)

// addressed is a container with its addresses.
type addressed struct{ path, v4, v6 string }

func (h *realHost) attach(r *cni.Runtime, id string, opts ...cni.NamespaceOpts) addressed {
	h.T.Helper()
	path := h.Container(id)
	result := testhost.MustSetUp(h.T, r, id, path, opts...)
	return addressed{path, result.IPv4().IP().String(), result.IPv6().IP().String()}
}

func (h *realHost) detach(r *cni.Runtime, id string) {
	h.T.Helper()
	if err := r.Remove(context.Background(), id, h.Path("netns", id)); err != nil {
		h.T.Error(err)
	}
}

// sh runs a script on the host.
func (h *realHost) sh(script string) {
	h.T.Helper()
	if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
		h.T.Fatalf("%s\n%v: %s; install iptables, nftables and iproute2", script, err, out)
	}
}
