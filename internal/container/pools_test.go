package container

import "testing"

// TestProcessOf reads the names of Pools.Dir, and the names of earlier versions.
func TestProcessOf(t *testing.T) {
	for _, test := range []struct {
		name          string
		life, runtime string
	}{
		{"life-12-34", "12-34", ""},
		{"56", "", "56"},
	} {
		if rec := processOf(test.name); rec.Life != test.life || rec.Runtime != test.runtime {
			t.Errorf("%s: got life %q, runtime %q", test.name, rec.Life, rec.Runtime)
		}
	}
}
