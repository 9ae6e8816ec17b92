package netconf

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
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
	attached := func(s *record.Store, name string, all, its []netip.Prefix) {
		t.Helper()
		gotAll, gotIts, err := attachedNetworks(s, name)
		expect.NoError(t, err)
		expect.Same(t, "all networks", gotAll, all)
		expect.Same(t, "those of "+name, gotIts, its)
	}
	attached(record.Open(t.TempDir()), "net", nil, nil)
	two := prefixes("10.1.0.0/16", "10.2.0.0/16")
	attached(records(t, 5), "net", two, two)

	s := records(t, 3)
	expect.NoError(t, s.Begin(&record.Record{ContainerID: "coming", Attachments: []record.Attachment{{Network: "net", IfName: "eth0"}}}))
	expect.NoError(t, s.Begin(&record.Record{ContainerID: "elsewhere", Attachments: []record.Attachment{{Network: "other", IfName: "eth0",
		Result: json.RawMessage(`{"ips": [{"address": "10.9.0.5/16"}], "routes": [{"dst": "10.8.0.0/16"}]}`)}}}))
	_, its, err := attachedNetworks(s, "net")
	expect.NoError(t, err)
	expect.Same(t, "of net", its, two)
	_, its, err = attachedNetworks(s, "other")
	expect.NoError(t, err)
	expect.Same(t, "of other", its, prefixes("10.9.0.0/16"))
	_, its, err = attachedNetworks(s, "none")
	expect.NoError(t, err)
	expect.Same(t, "of none", its, nil)
}
