package builtin

import "testing"

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
