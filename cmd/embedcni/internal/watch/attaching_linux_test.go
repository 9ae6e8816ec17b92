package watch

import (
	"context"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/cnitest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/plugin"
)

// slow is a plugin whose ADD waits.
type slow struct{ until chan struct{} }

func (s slow) Add(_ context.Context, r *plugin.Request) (*types100.Result, error) {
	<-s.until
	return r.Chained()
}
func (slow) Del(context.Context, *plugin.Request) error   { return nil }
func (slow) Check(context.Context, *plugin.Request) error { return nil }

// While a container is attached for long, that is all that is reported of it, whatever
// happens to others. Its plugin is of another program.
func TestWhileAttaching(t *testing.T) {
	w := start(t, Options{})
	conf := []byte(`{"cniVersion": "1.0.0", "name": "slow", "plugins": [{"type": "bridge", "bridge": "slow0", "ipam":
		{"type": "host-local", "dataDir": "` + w.Dir + `/ipam", "subnet": "10.2.0.0/24"}}, {"type": "slow"}]}`)
	until := make(chan struct{})
	slowly := w.Runtime(cni.WithPlugin("slow", slow{until}), cni.WithConfListBytes(conf), cni.WithOwner("other"))
	rt := w.Runtime(cni.WithDefaultConf, cni.WithOwner("other"))
	done := make(chan error, 1)
	container := cnitest.Container(t)
	go func() {
		_, err := slowly.Setup(t.Context(), "slow-1", container)
		done <- err
	}()
	expect.Same(t, "container", w.await(Attaching).ContainerID, "slow-1")

	end := w.attach(rt, "web-1", "other", "10.1.0.2/24")
	w.link(end, netlink.LinkSetNoMaster)
	expect.Same(t, "lost", w.await(Lost).ContainerID, "web-1") // by a look at both

	close(until)
	expect.NoError(t, expect.Await(t, "the slow Setup", done))
	expect.Same(t, "attached", w.await(Attached), Event{Event: Attached, ContainerID: "slow-1", Network: "slow", IfName: "eth0", Owner: "other", Addresses: []string{"10.2.0.2/24"}})
	w.end()
	for _, id := range []string{"slow-1", "web-1"} {
		expect.NoError(t, slowly.Remove(t.Context(), id, ""))
	}
}
