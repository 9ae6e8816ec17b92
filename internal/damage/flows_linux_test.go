package damage

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// way is a way of packets: from the namespace at path, or the host, to a server.
type way struct{ from, address string }

// flow is a connection that lives as long as the test.
type flow struct {
	*plugintest.Flow
	name string
}

// open opens a connection over each of the ways, with TCP and UDP.
func open(h *testhost.RealHost, ways []way) []flow {
	h.T.Helper()
	var all []flow
	for _, w := range ways {
		from, err := netns.Current()
		if w.from != "" {
			expect.NoError(h.T, errors.Join(err, from.Close()))
			from, err = netns.Open(w.from)
		}
		expect.NoError(h.T, err)
		for _, network := range []string{"tcp", "udp"} {
			all = append(all, flow{plugintest.NewFlow(h.T, from, network, netip.MustParseAddrPort(w.address)),
				fmt.Sprintf("the %s connection from %q to %s", network, w.from, w.address)})
		}
		expect.NoError(h.T, from.Close())
	}
	return all
}

// wantFlowing checks that each connection is answered.
func wantFlowing(t testing.TB, all []flow) {
	t.Helper()
	for _, f := range all {
		if err := f.Answer(testhost.AnswerWait); err != nil {
			t.Errorf("%s: %v", f.name, err)
		}
	}
}
