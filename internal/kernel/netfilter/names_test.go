package netfilter

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// TestNamesAreThoseOfThePlugins compares the names with those of the plugins: the
// oracle writes the file of their names, and compares it with them.
func TestNamesAreThoseOfThePlugins(t *testing.T) {
	data := expect.Value(os.ReadFile("testdata/names.json"))(t)
	var attachments []struct {
		Network, ID string
		Names       []string
	}
	expect.NoError(t, json.Unmarshal(data, &attachments))
	for _, a := range attachments {
		got := []string{
			chainName("", a.Network, a.ID), chainName("DN-", a.Network, a.ID), chainName("SN-", a.Network, a.ID),
			Owner{Network: a.Network, ContainerID: a.ID}.Chains()[0].Comment, hashOf(a.Network)[:16],
		}
		expect.Same(t, a.Network+" "+a.ID, got, a.Names)
	}
	expect.That(t, len(attachments) >= 5, "only %d attachments compared", len(attachments))
}
