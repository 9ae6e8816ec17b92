package ahead

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/embedcni/cni/internal/refplugins"
)

func TestVersionsOfExecutables(t *testing.T) {
	plugins, err := refplugins.Dir(t.Context(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var v Versions
	portmap := filepath.Join(plugins, "portmap")
	if !v.Makes(t.Context(), "", "portmap", portmap, nil) {
		t.Errorf("the reference plugin is of version %q", v.of(t.Context(), "", "portmap", portmap))
	}
	if v.Makes(t.Context(), "/another", "portmap", portmap, nil) {
		t.Error("the rules of a plugin in another root are taken for known")
	}
	if v.Makes(t.Context(), "", "firewall", portmap, []byte(`{}`)) {
		t.Error("another plugin of the same module is taken for the one")
	}
	other := filepath.Join(t.TempDir(), "portmap")
	if err := os.WriteFile(other, []byte("#!/bin/sh\necho CNI portmap plugin v1.9.1 >&2\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if v.Makes(t.Context(), "", "portmap", other, nil) {
		t.Error("a script is taken for the reference plugin")
	}
	// A different file at this path is a different plugin.
	data, err := os.ReadFile(portmap)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(other+".new", data, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(other+".new", other); err != nil {
		t.Fatal(err)
	}
	if !v.Makes(t.Context(), "", "portmap", other, nil) {
		t.Error("the reference plugin that was installed meanwhile is not known")
	}
	if v.Makes(t.Context(), "", "portmap", filepath.Join(plugins, "none"), nil) {
		t.Error("a file that does not exist is known")
	}
}
