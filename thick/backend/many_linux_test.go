package backend_test

import (
	"fmt"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/thick/backend"
	"github.com/embedcni/cni/thick/server"
)

// BenchmarkCheckAmongMany: a CHECK of one container of as many on record.
func BenchmarkCheckAmongMany(b *testing.B) {
	h := testhost.New(b)
	runtime := h.Runtime(cni.WithOwner("us"), cni.WithPluginDir(nil), cni.WithPlugin("idle", testhost.Idle{}))
	config := delegating("node", delegate("", "idle"))
	r := &server.Request{ContainerID: "c0", NetNS: h.Container("c0"), IfName: "eth0", Config: []byte(config), Network: "node", CNIVersion: "1.1.0"}
	daemon := backend.New(runtime, backend.Options{})
	_, err := daemon.Add(b.Context(), r)
	expect.NoError(b, err)
	mine, err := h.Records().Load("c0")
	expect.NoError(b, err)
	for _, n := range []int{1, 10_000} {
		for i := 1; i < n; i++ {
			mine.ContainerID = record.ID(fmt.Sprint("c", i))
			expect.NoError(b, h.Records().Begin(mine))
		}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for range b.N {
				expect.NoError(b, daemon.Check(b.Context(), r))
			}
		})
	}
}
