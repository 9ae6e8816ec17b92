package backend_test

import (
	"context"
	"fmt"
	"log"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/thick/backend"
	"github.com/embedcni/cni/thick/multinet"
	"github.com/embedcni/cni/thick/server"
)

// A daemon attaches pods to the networks of their annotation, out of those that it knows.
func ExampleNew() {
	runtime, err := cni.New(cni.WithStateDir("/var/lib/example-daemon"), cni.WithOwner("example-daemon"))
	if err != nil {
		log.Fatal(err)
	}
	known := map[string]string{"shop/storage": `{"cniVersion": "1.0.0", "name": "storage", "plugins": [{"type": "macvlan"}]}`}
	var b server.Backend = backend.New(runtime, backend.Options{
		Networks: func(context.Context, *server.Request) (string, error) {
			return "storage@net7", nil // from the pod's metadata
		},
		Lookup: func(_ context.Context, r *server.Request, s multinet.Selection) (multinet.Definition, error) {
			config, ok := known[s.Network()]
			if !ok || s.Namespace != r.Pod.Namespace {
				return multinet.Definition{}, fmt.Errorf("pod %s/%s may not use it", r.Pod.Namespace, r.Pod.Name)
			}
			return multinet.Definition{Config: []byte(config)}, nil
		},
	})
	_ = b // server.New serves it on a socket
}
