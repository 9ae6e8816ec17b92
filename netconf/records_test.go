package netconf

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/store/record"
)

func records(t testing.TB, n int) *record.Store {
	t.Helper()
	s := record.Open(filepath.Join(t.TempDir(), "attachments"))
	for i := range n {
		expect.NoError(t, s.Begin(&record.Record{ContainerID: record.ID(fmt.Sprint("c", i)), Attachments: []record.Attachment{{
			Network: "net", IfName: "eth0", Config: []byte(`{"plugins": [{"type": "bridge", "ipam": {"ranges": [[{"subnet": "10.1.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}`),
			Result: json.RawMessage(fmt.Sprintf(`{"ips": [{"address": "10.%d.0.5/16"}], "routes": [{"dst": "::/0"}]}`, 1+i%2)),
		}}}))
	}
	return s
}

func TestAttached(t *testing.T) {
	expect.Same(t, "without records", expect.Value(attachedNetworks(record.Open(t.TempDir())))(t), nil)
	s := records(t, 5)
	expect.NoError(t, s.Begin(&record.Record{ContainerID: "coming", Attachments: []record.Attachment{{Network: "net", IfName: "eth0"}}}))
	expect.NoError(t, s.Begin(&record.Record{ContainerID: "elsewhere", Attachments: []record.Attachment{{Network: "other", IfName: "eth0",
		Result: json.RawMessage(`{"ips": [{"address": "10.9.0.5/16"}], "routes": [{"dst": "10.8.0.0/16"}]}`)}}}))
	got := expect.Value(attachedNetworks(s))(t)
	slices.SortFunc(got, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	expect.Same(t, "networks", got, prefixes("10.1.0.0/16", "10.2.0.0/16", "10.8.0.0/16", "10.9.0.0/16"))
}
