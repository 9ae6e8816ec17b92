package interchange

import (
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/builtin"
)

// promised returns the types that this module promises to build in.
func promised() []string {
	return []string{"loopback", "bridge", "ptp", "host-local", "static", "portmap", "firewall", "tuning", "bandwidth", "macvlan", "host-device"}
}

// TestMatrixIsComplete: all promised types are built in. The matrix has every type with every family, but for those whose
// rules the reference plugins do not know.
func TestMatrixIsComplete(t *testing.T) {
	have := map[string]bool{}
	for _, c := range cases() {
		for _, typ := range c.network.types(t) {
			have[typ+" "+c.family] = true
		}
	}
	var missing []string
	for _, typ := range promised() {
		if builtin.New()(typ) == nil {
			t.Errorf("%s is not built in", typ)
		}
		for _, family := range families() {
			// Plugins without addresses of their own have no family.
			needless := typ == "loopback" && family != "dual" || typ == "portmap" || typ == "firewall"
			if key := typ + " " + family; !needless && !have[key] {
				missing = append(missing, key)
			}
		}
	}
	if missing != nil {
		t.Errorf("the matrix lacks:\n%s", strings.Join(missing, "\n"))
	}
}
