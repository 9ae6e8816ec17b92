package multus

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost/servertest"
	"github.com/embedcni/cni/thick/server"
)

// scriptedBackend attaches nothing. It answers ADD as the scripted plugin does, unless fail
// has an error for the verb.
type scriptedBackend struct {
	servertest.Backend
	fail func(ctx context.Context, verb string) error
}

func newScripted() *scriptedBackend {
	b := &scriptedBackend{fail: func(context.Context, string) error { return nil }}
	b.Do = func(ctx context.Context, verb string, r *server.Request) (types.Result, error) {
		if err := b.fail(ctx, verb); err != nil || verb != "ADD" {
			return nil, err
		}
		return create.CreateFromBytes(fmt.Appendf(nil, `{"cniVersion": "1.0.0",
			"interfaces": [{"name": %q, "mac": "02:00:00:00:00:01", "sandbox": %q}],
			"ips": [{"interface": 0, "address": "10.9.0.2/24", "gateway": "10.9.0.1"}],
			"routes": [{"dst": "0.0.0.0/0", "gw": "10.9.0.1"}]}`, r.IfName, r.NetNS))
	}
	return b
}

// serve has this library serve Multus' socket until the test ends.
func serve(t *testing.T, b server.Backend) *server.Server {
	t.Helper()
	expect.NoError(t, os.MkdirAll(runDir, 0o700))
	return servertest.Serve(t, b, server.Options{Kubernetes: true}, socket)
}
