package builtin

import (
	"testing"

	"github.com/embedcni/cni/internal/known"
)

func TestNewRemembers(t *testing.T) {
	lookup := New()
	if lookup("host-local") != lookup("host-local") {
		t.Error("another plugin the second time")
	}
	if lookup("host-local") == New()("host-local") {
		t.Error("two runtimes share a plugin")
	}
	if p := lookup("none"); p != nil {
		t.Errorf("got %v for a type that is not built in", p)
	}
}

// TestEveryPluginIsInTheTable of known types. Without a row, nothing that the
// plugin makes is swept.
func TestEveryPluginIsInTheTable(t *testing.T) {
	for typ := range plugins() {
		if Lookup(typ) == nil || !known.Has(typ) {
			t.Errorf("%s: plugin %v, in the table: %t", typ, Lookup(typ), known.Has(typ))
		}
	}
}
