package shim_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/expect"
)

// pairs returns the attachments of the node, as "container/interface network".
func (n *node) pairs(t *testing.T) (all []string) {
	t.Helper()
	for _, a := range expect.Value(n.Attachments(t.Context()))(t) {
		all = append(all, fmt.Sprintf("%s/%s %s", a.ContainerID, a.IfName, a.Network))
	}
	slices.Sort(all)
	return all
}

// TestLibcniCollectsPairs of a container and an interface: a container is not kept, nor
// another of its interfaces detached, because of one pair.
func TestLibcniCollectsPairs(t *testing.T) {
	n := newNode(t)
	n.start(t)
	podnet, ctx := n.list(t, "1.1.0", "10.1.0.7/16"), t.Context()
	other := expect.Value(libcni.ConfListFromBytes(bytes.Replace(podnet.Bytes, []byte("podnet"), []byte("other"), 1)))(t)
	for _, a := range []struct {
		network    *libcni.NetworkConfigList
		id, ifName string
	}{{podnet, "c1", "eth0"}, {podnet, "c1", "eth1"}, {other, "c1", "eth2"}, {podnet, "c2", "eth0"}, {podnet, "c2", "eth1"}} {
		c := container(a.id)
		c.IfName = a.ifName
		expect.Value(n.cni.AddNetworkList(ctx, a.network, c))(t)
	}
	n.take()

	// A libcni that has attached nothing repeats no DEL: the daemon alone collects.
	collector := libcni.NewCNIConfigWithCacheDir(n.cni.Path, t.TempDir(), nil)
	said := (*types.Error)(nil)
	if err := collector.GCNetworkList(ctx, podnet, nil); !errors.As(err, &said) || said.Code != types.ErrInvalidNetworkConfig { // as cnitool asks
		t.Errorf("a GC without a list: %v", err)
	}
	expect.NoError(t, collector.GCNetworkList(ctx, podnet, &libcni.GCArgs{ValidAttachments: []types.GCAttachment{
		{ContainerID: "c1", IfName: "eth0"}, {ContainerID: "c1", IfName: "eth2"}, {ContainerID: "c2", IfName: "eth1"},
	}}))
	asked, _ := n.take()
	expect.Same(t, "asked", asked, []string{"GC   podnet"})
	expect.Same(t, "attached", n.pairs(t), []string{"c1/eth0 podnet", "c1/eth2 other", "c2/eth1 podnet"})
	expect.NoError(t, collector.GCNetworkList(ctx, podnet, &libcni.GCArgs{}))
	expect.Same(t, "none is valid", n.pairs(t), []string{"c1/eth2 other"})
}
