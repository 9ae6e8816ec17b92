package fwrules

import (
	"encoding/json"
	"os"
	"reflect"
	"testing"
)

// TestNamesAreThoseOfThePlugins compares the names with those of the plugins: the
// oracle writes the file of their names, and compares it with them.
func TestNamesAreThoseOfThePlugins(t *testing.T) {
	data, err := os.ReadFile("testdata/names.json")
	if err != nil {
		t.Fatal(err)
	}
	var attachments []struct {
		Network, ID string
		Names       []string
	}
	if err := json.Unmarshal(data, &attachments); err != nil {
		t.Fatal(err)
	}
	for _, a := range attachments {
		got := []string{
			chainName("", a.Network, a.ID), chainName("DN-", a.Network, a.ID), chainName("SN-", a.Network, a.ID),
			jumpComment(a.Network, a.ID), hashOf(a.Network)[:16],
		}
		if !reflect.DeepEqual(got, a.Names) {
			t.Errorf("%q, %q:\ngot  %q\nwant %q", a.Network, a.ID, got, a.Names)
		}
	}
	if len(attachments) < 5 {
		t.Errorf("only %d attachments compared", len(attachments))
	}
}
