package ipam

import (
	"context"
	"testing"

	"github.com/embedcni/cni/internal/builtin/plugintest"
	"github.com/embedcni/cni/internal/expect"
)

// TestRepairReservesWhatIsFree: a reservation that is gone is made again, and
// claimed before; those of others stay as they are.
func TestRepairReservesWhatIsFree(t *testing.T) {
	const mine = "a\r\neth0"
	for name, tt := range map[string]struct {
		files map[string]string // nil: there is no directory
		want  string
		left  string
		after map[string]string
	}{
		"nothing": {
			files: map[string]string{"10.1.0.2": mine, "fd00::2": mine},
			after: map[string]string{"10.1.0.2": mine, "fd00::2": mine},
		},
		"IPv4 gone": {
			files: map[string]string{"fd00::2": mine, "10.1.0.3": "b\r\neth0"},
			want:  `host-local host reservation "10.1.0.2": wanted "a\r\neth0", found ""; fix`,
			after: map[string]string{"10.1.0.2": mine, "fd00::2": mine, "10.1.0.3": "b\r\neth0"},
		},
		"another's": {
			files: map[string]string{"10.1.0.2": "b\r\neth0"},
			want: `host-local host reservation "10.1.0.2": wanted "a\r\neth0", found "b\r\neth0"; no fix: somebody else has it
host-local host reservation "fd00::2": wanted "a\r\neth0", found ""; fix`,
			left:  `host-local host reservation "10.1.0.2": wanted "a\r\neth0", found "b\r\neth0"; no fix: somebody else has it`,
			after: map[string]string{"10.1.0.2": "b\r\neth0", "fd00::2": mine},
		},
		"an administrator's": {
			files: map[string]string{"10.1.0.2": "", "fd00::2": mine},
			want:  `host-local host reservation "10.1.0.2": wanted "a\r\neth0", found "an empty file"; no fix: somebody else has it`,
			left:  `host-local host reservation "10.1.0.2": wanted "a\r\neth0", found "an empty file"; no fix: somebody else has it`,
			after: map[string]string{"10.1.0.2": "", "fd00::2": mine},
		},
		"no directory": {
			want: `host-local host reservation "10.1.0.2": wanted "a\r\neth0", found ""; fix
host-local host reservation "fd00::2": wanted "a\r\neth0", found ""; fix`,
			after: map[string]string{"10.1.0.2": mine, "fd00::2": mine},
		},
	} {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			dir := base + "/podnet"
			if tt.files != nil {
				fill(t, dir, tt.files)
			}
			r := call(configFor(base, dual), "a")
			r.Type = "host-local"
			r.PrevResult = result(t, "10.1.0.2/24", "fd00::2/64")
			p := plugintest.Named{Comparer: NewHostLocal()}
			all := expect.Value(p.Compare(t.Context(), r, nil))(t)
			expect.Same(t, "differences", plugintest.Short(all), tt.want)
			left := expect.Value(plugintest.Repair(t.Context(), r, p, nil, false))(t)
			expect.Same(t, "what is left", plugintest.Short(left), tt.left)
			got := map[string]string{}
			for file, content := range files(t, dir) {
				if file != "lock" {
					got[file] = content
				}
			}
			expect.Same(t, "files", got, tt.after)
		})
	}
}

// TestRepairLosesTheRace: another container gets the address between the
// comparison and the repair.
func TestRepairLosesTheRace(t *testing.T) {
	base := t.TempDir()
	dir := base + "/podnet"
	fill(t, dir, map[string]string{"fd00::2": "a\r\neth0"})
	r := call(configFor(base, dual), "a")
	r.PrevResult = result(t, "10.1.0.2/24", "fd00::2/64")
	all := expect.Value(NewHostLocal().Compare(t.Context(), r, nil))(t)
	if len(all) != 1 || all[0].Fix == nil {
		t.Fatalf("differences: %s", plugintest.Lines(all))
	}
	fill(t, dir, map[string]string{"10.1.0.2": "b\r\neth0"})
	err := all[0].Fix(context.Background())
	expect.Says(t, "error", err, `the address 10.1.0.2 is reserved for "b\r\neth0" by now`)
	expect.Same(t, "the reservation", files(t, dir)["10.1.0.2"], "b\r\neth0")
}
