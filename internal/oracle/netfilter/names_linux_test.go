package netfilter

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/utils"

	"github.com/embedcni/cni/internal/expect"
)

var write = flag.Bool("write", false, "write the file of names anew")

// golden is the file that the tests of this library's names read.
const golden = "../../kernel/netfilter/testdata/names.json"

// TestNamesAreThoseOfThePlugins compares the file of names with the functions
// that name the plugins' chains and comments.
func TestNamesAreThoseOfThePlugins(t *testing.T) {
	type attachment struct {
		Network, ID string
		Names       []string
	}
	var all []attachment
	for _, a := range []struct{ network, id string }{
		{"podnet", "c1"}, {"n", ""}, {"", "x"}, {"a.b-c_d", strings.Repeat("f", 255)}, {`q"uote`, "é\n"},
	} {
		all = append(all, attachment{a.network, a.id, []string{
			utils.FormatChainName(a.network, a.id),
			utils.MustFormatChainNameWithPrefix(a.network, a.id, "DN-"),
			utils.MustFormatChainNameWithPrefix(a.network, a.id, "SN-"),
			utils.FormatComment(a.network, a.id),
			utils.MustFormatHashWithPrefix(16, "", a.network),
		}})
	}
	want := expect.Value(json.MarshalIndent(all, "", "\t"))(t)
	want = append(want, '\n')
	if *write {
		expect.NoError(t, os.WriteFile(golden, want, 0o644))
	}
	got := expect.Value(os.ReadFile(golden))(t)
	expect.That(t, bytes.Equal(got, want), "%s is not the plugins' any more: go test -write makes it anew:\n%s\nwant\n%s", golden, got, want)
}
