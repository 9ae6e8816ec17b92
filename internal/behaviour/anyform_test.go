package behaviour_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

// TestConfigurationInAnyForm: the option loads what the option for that form loads, and
// says what it took.
func TestConfigurationInAnyForm(t *testing.T) {
	dir := testhost.ConfDir(t, map[string]string{
		"one.conf": testhost.ConfOf("a"), "one.conflist": testhost.ConfOf("a"),
		"list.conflist": testhost.ListOf("b"), "list.conf": testhost.ListOf("b"), "beside.conflist": `{"cniVersion": "1.1.0", "name": "c"}`,
	})
	expect.NoError(t, os.Mkdir(filepath.Join(dir, "c"), 0o755), os.WriteFile(filepath.Join(dir, "c", "1.conf"), []byte(`{"type": "x"}`), 0o644))
	file := func(name string) string { return filepath.Join(dir, name) }
	for name, test := range map[string]struct {
		any, plain cni.Opt
		form       string
		path       string
	}{
		"bytes of one plugin":            {cni.WithConfiguration([]byte(testhost.ConfOf("a"))), cni.WithConf([]byte(testhost.ConfOf("a"))), "conf", ""},
		"bytes of a list":                {cni.WithConfiguration([]byte(testhost.ListOf("b"))), cni.WithConfListBytes([]byte(testhost.ListOf("b"))), "conflist", ""},
		"file of one plugin":             {cni.WithConfiguration(file("one.conf")), cni.WithConfFile(file("one.conf")), "conf", file("one.conf")},
		"one plugin in a .conflist":      {cni.WithConfiguration(file("one.conflist")), cni.WithConfFile(file("one.conflist")), "conf", file("one.conflist")},
		"file of a list":                 {cni.WithConfiguration(file("list.conflist")), cni.WithConfListFile(file("list.conflist")), "conflist", file("list.conflist")},
		"a list in a .conf":              {cni.WithConfiguration(file("list.conf")), cni.WithConfListFile(file("list.conf")), "conflist", file("list.conf")},
		"a list with its plugins beside": {cni.WithConfiguration(file("beside.conflist")), cni.WithConfListFile(file("beside.conflist")), "conflist", file("beside.conflist")},
	} {
		t.Run(name, func(t *testing.T) {
			got := expect.Value(cni.New(test.any))(t).GetConfig().Networks[0]
			want := *expect.Value(cni.New(test.plain))(t).GetConfig().Networks[0]
			want.Form, want.Path = test.form, test.path
			expect.Same(t, "network", expect.Value(json.Marshal(got))(t), expect.Value(json.Marshal(want))(t))
		})
	}
	r := expect.Value(cni.New(cni.WithLoNetwork, cni.WithConfiguration(file("one.conf")), cni.WithConfiguration(file("list.conf"))))(t)
	expect.Same(t, "interfaces", loaded(r), "cni-loopback=lo a=eth1 b=eth2")
	for name, test := range map[string]struct {
		opt  cni.Opt
		kind error
		text string
	}{
		"content as a string": {cni.WithConfiguration(" " + testhost.ConfOf("a")), cni.ErrInvalidArgument, "as bytes"},
		"no file":             {cni.WithConfiguration(file("none")), cni.ErrRead, file("none")},
		"a directory":         {cni.WithConfiguration(dir), cni.ErrRead, "not a regular file"},
		"no JSON":             {cni.WithConfiguration([]byte("{")), cni.ErrInvalidConfig, "parsing"},
		"neither":             {cni.WithConfiguration([]byte(`{"name": "x", "cniVersion": "1.0.0"}`)), cni.ErrInvalidConfig, "no plugins"},
		"nothing":             {cni.WithConfiguration([]byte(nil)), cni.ErrInvalidConfig, "parsing"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := cni.New(test.opt)
			if !errors.Is(err, test.kind) || !strings.Contains(err.Error(), test.text) {
				t.Errorf("got %v, want %v with %q", err, test.kind, test.text)
			}
		})
	}
}
