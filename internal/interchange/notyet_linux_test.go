package interchange

import (
	"slices"
	"testing"

	"github.com/embedcni/cni/internal/builtin"
)

// promised returns the types that this module promises to build in.
func promised() []string {
	return []string{"loopback", "bridge", "ptp", "host-local", "static", "portmap", "firewall", "tuning", "bandwidth", "macvlan", "host-device"}
}

// notYet returns those of them that are not built in yet. For these the tests
// only show that the cases are sound, with the reference plugins on both sides.
func notYet() []string {
	return nil
}

func TestNotYetListsTheTypesNotBuiltIn(t *testing.T) {
	for _, typ := range promised() {
		listed, known := slices.Contains(notYet(), typ), builtin.Lookup(typ) != nil
		if listed && known {
			t.Errorf("%s is built in: take it out of notYet", typ)
		}
		if !listed && !known {
			t.Errorf("%s is neither built in nor in notYet", typ)
		}
	}
	for _, typ := range notYet() {
		if !slices.Contains(promised(), typ) {
			t.Errorf("notYet has %s, which is no type of the matrix", typ)
		}
	}
}

// builtIn returns the types that run in process on our side.
func builtIn(types []string) []string {
	return slices.DeleteFunc(slices.Clone(types), func(typ string) bool { return builtin.Lookup(typ) == nil })
}
