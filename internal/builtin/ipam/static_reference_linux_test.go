package ipam

import (
	"fmt"
	"testing"

	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/plugin"
)

// TestAddressesAreThoseOfTheReference: whatever the keys of an entry look like, both
// answer alike, or both refuse it.
func TestAddressesAreThoseOfTheReference(t *testing.T) {
	h := plugintest.NewHost(t)
	ours := plugintest.Ours(h.Host, func(string) plugin.Plugin { return Static{} })
	theirs := plugintest.Theirs(t, h.Host)
	conf := func(entry string) plugintest.Call {
		return plugintest.Call{
			Type: "static", ID: "c1", NetNS: h.NetNS, IfName: "eth0",
			Config: fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "net", "type": "static", "ipam": {"type": "static", "addresses": [%s]}}`, entry),
		}
	}
	for entry, accepted := range map[string]bool{
		`{"address": "10.1.0.2/24", "gateway": "10.1.0.1"}`:                                                      true,
		`{"ADDRESS": "10.1.0.2/24", "Gateway": "10.1.0.1"}`:                                                      true,
		`{"address": "10.1.0.2/24", "Gateway": "10.1.0.1", "Address": {"IP": "", "Mask": null}, "Version": "4"}`: true,
		`{"Address": {"IP": "10.1.0.2", "Mask": "////AA=="}}`:                                                    true,
		`{"Address": {"IP": "fd00::2", "Mask": "//////////8AAAAAAAAAAA=="}, "address": "10.1.0.2/24"}`:           true,
		`{"Address": {"ip": "10.1.0.2", "mask": "////AA=="}, "gateway": null}`:                                   true,
		`{"address": "10.1.0.2/024"}`:                                                                            true,
		`{"address": "010.1.0.2/24"}`:                                                                            false,
		`{"Address": "10.1.0.2/24"}`:                                                                             false,
		`{"address": {"IP": "10.1.0.2", "Mask": "////AA=="}}`:                                                    false,
		`{"Addres": "10.1.0.2/24"}`:                                                                              false,
		`{"address": "10.1.0.2/24", "version": 4}`:                                                               false,
	} {
		c := conf(entry)
		want, refused := theirs.Run(t.Context(), "ADD", c)
		got, err := ours.Run(t.Context(), "ADD", c)
		expect.Same(t, "the reference accepts "+entry, refused == nil, accepted)
		if (err == nil) != (refused == nil) {
			t.Errorf("%s: ours %v, the reference's %v", entry, err, refused)
		} else if err == nil {
			expect.Same(t, entry, expect.JSON(t, got), expect.JSON(t, want))
		}
	}

	// The reference prints a result that nobody can parse.
	for _, mask := range []string{`"/wD/AA=="`, "null", `"//8="`} {
		c := conf(`{"Address": {"IP": "10.1.0.2", "Mask": ` + mask + `}}`)
		if result, err := plugintest.Result(theirs.Must(t, "ADD", c)); err == nil {
			t.Errorf("mask %s: the reference's result is %v", mask, result)
		}
		_ = ours.MustFail(t, "ADD", c)
	}
}
