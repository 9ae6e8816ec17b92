package leftovers

import (
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/store/record"
)

// TestValid: an attachment is listed once, with the ID that plugins know; one of a
// damaged record is listed for each loaded network; a record that cannot be read is
// an error.
func TestValid(t *testing.T) {
	whole := record.Found{Record: &record.Record{ContainerID: "c1", PluginID: "warm-1", Attachments: []record.Attachment{
		{Network: "a", IfName: "eth0", State: record.Added}, {Network: "a", IfName: "eth1", State: record.Deleted},
	}}}
	damaged := record.Found{Err: record.ErrBad, Record: &record.Record{ContainerID: "c2", Attachments: []record.Attachment{{IfName: "eth0"}}}}
	cached := []*libcni.NetworkAttachment{{Network: "a", ContainerID: "warm-1", IfName: "eth0"}, {Network: "c", ContainerID: "c3", IfName: "eth0"}}
	v := expect.Value(FindValid([]record.Found{whole, damaged}, []string{"a", "b"}, cached))(t)
	other := types.GCAttachment{ContainerID: "other", IfName: "eth0"}
	for network, want := range map[string][]types.GCAttachment{
		"a": {{ContainerID: "warm-1", IfName: "eth0"}, {ContainerID: "c2", IfName: "eth0"}, other},
		"b": {{ContainerID: "c2", IfName: "eth0"}, other},
		"c": {{ContainerID: "c3", IfName: "eth0"}, other},
		"d": {other},
	} {
		expect.Same(t, network, v.With(network, []types.GCAttachment{want[0], other, other}), want)
	}
	expect.That(t, !v.Has(Key{ContainerID: "warm-1", Network: "a", IfName: "eth1"}), "an attachment that was removed is valid")
	for _, f := range []record.Found{{Err: record.ErrUnread, Record: whole.Record}, {Err: record.ErrBad, Record: &record.Record{}}} {
		expect.Is(t, expect.Err(FindValid([]record.Found{f}, nil, nil)), f.Err)
	}
}
