package netfilter

import (
	"fmt"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/utils"
)

// TestNamesAreThoseOfThePlugins compares what is computed here with what the
// plugins compute.
func TestNamesAreThoseOfThePlugins(t *testing.T) {
	for _, c := range []struct{ network, id string }{
		{"podnet", "c1"}, {"n", ""}, {"", "x"}, {"a.b-c_d", strings.Repeat("f", 255)}, {`q"uote`, "é\n"},
	} {
		got := []string{
			chainName("", c.network, c.id), chainName("DN-", c.network, c.id), chainName("SN-", c.network, c.id),
			jumpComment(c.network, c.id), hashOf(c.network)[:16],
		}
		want := []string{
			utils.FormatChainName(c.network, c.id),
			utils.MustFormatChainNameWithPrefix(c.network, c.id, "DN-"),
			utils.MustFormatChainNameWithPrefix(c.network, c.id, "SN-"),
			utils.FormatComment(c.network, c.id),
			utils.MustFormatHashWithPrefix(16, "", c.network),
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%q, %q:\ngot  %q\nwant %q", c.network, c.id, got, want)
		}
	}
}
