package ipam

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/plugin"
)

// TestAFileThatIsRewrittenInPlaceIsNoticed, for example after an
// administrator's edit: only the file itself shows the change.
func TestAFileThatIsRewrittenInPlaceIsNoticed(t *testing.T) {
	for what, test := range map[string]func(t *testing.T, p *HostLocal, base string, config string){
		"by a DEL without the result": func(t *testing.T, p *HostLocal, base, config string) {
			expect.NoError(t, p.Del(t.Context(), call(config, "new")))
			wantFiles(t, base, "10.1.0.3")
		},
		"by a DEL of who had it": func(t *testing.T, p *HostLocal, base, config string) {
			expect.NoError(t, p.Del(t.Context(), call(config, "old")))
			wantFiles(t, base, "10.1.0.2", "10.1.0.3")
		},
		"by a CHECK without the result": func(t *testing.T, p *HostLocal, base, config string) {
			if err := p.Check(t.Context(), call(config, "new")); err != nil {
				t.Error(err)
			}
			expect.Fails(t, "CHECK of the previous holder succeeds", p.Check(t.Context(), call(config, "old")))
		},
		"by an ADD of who had it": func(t *testing.T, p *HostLocal, base, config string) {
			if _, err := p.Add(t.Context(), call(config, "old")); err != nil {
				t.Error(err)
			}
			wantFiles(t, base, "10.1.0.2", "10.1.0.3", "10.1.0.4")
		},
	} {
		t.Run(what, func(t *testing.T) {
			base := t.TempDir()
			config := configFor(base, `"subnet": "10.1.0.0/24"`)
			p := NewHostLocal()
			for _, id := range []string{"old", "other"} {
				expect.Value(p.Add(t.Context(), call(config, id)))(t)
			}
			file := filepath.Join(base, "podnet", "10.1.0.2")
			before := expect.Value(os.ReadFile(file))(t)
			after := strings.Replace(string(before), "old", "new", 1)
			if err := os.WriteFile(file, []byte(after), 0o600); err != nil || after == string(before) {
				t.Fatal(err, after)
			}
			test(t, p, base, config)
		})
	}
}

// wantFiles compares the reserved addresses.
func wantFiles(t *testing.T, base string, want ...string) {
	t.Helper()
	files := expect.Value(filepath.Glob(filepath.Join(base, "podnet", "10.*")))(t)
	var got []string
	for _, f := range files {
		got = append(got, filepath.Base(f))
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("reserved are %v, want %v", got, want)
	}
}

// TestADelWithTheResultReadsNoOtherFile: its cost does not grow with the number
// of containers. Files rewritten in place show which ones were read.
func TestADelWithTheResultReadsNoOtherFile(t *testing.T) {
	base := t.TempDir()
	config := configFor(base, `"subnet": "10.1.0.0/24"`)
	p := NewHostLocal()
	var r *plugin.Request
	for _, id := range []string{"other", "c1"} {
		r = call(config, id)
		result := expect.Value(p.Add(t.Context(), r))(t)
		r.PrevResult = result
	}
	others := filepath.Join(base, "podnet", "10.1.0.2")
	expect.NoError(t, os.WriteFile(others, []byte("rewritten"), 0o600))
	expect.NoError(t, p.Del(t.Context(), r))
	wantFiles(t, base, "10.1.0.2")
	for _, d := range p.dirs {
		if has := d.memo.holders[netip.MustParseAddr("10.1.0.2")]; !strings.HasPrefix(has, "other") {
			t.Errorf("the file of another container was read: %q", has)
		}
	}
}
