package nsfind

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netns"
)

// TestTheFirstProcesssNamespaceIsThatOfItsThreads, even if its leading thread
// is in another one.
func TestTheFirstProcesssNamespaceIsThatOfItsThreads(t *testing.T) {
	file := func(name string) (path string, id netns.ID) {
		path = filepath.Join(t.TempDir(), name)
		expect.NoError(t, os.WriteFile(path, nil, 0o600))
		id, _ = At(path)
		return path, id
	}
	host, want := file("host")
	container, other := file("container")
	const missing = "missing"
	for what, test := range map[string]struct {
		threads map[string]string
		want    netns.ID
		ok      bool
	}{
		"one thread":                    {map[string]string{"1": host}, want, true},
		"all in one":                    {map[string]string{"1": host, "2": host, "3": host}, want, true},
		"the leading one parked":        {map[string]string{"1": container, "2": host, "3": host}, want, true},
		"one at work":                   {map[string]string{"1": host, "2": container, "3": host}, want, true},
		"one that may not be asked":     {map[string]string{"1": missing, "2": container}, other, true},
		"none that may be asked":        {map[string]string{"1": missing, "2": missing}, netns.ID{}, false},
		"a process that cannot be seen": {nil, netns.ID{}, false},
	} {
		links := map[string]string{}
		for tid, to := range test.threads {
			links["1/task/"+tid+"/ns/net"] = to
		}
		if got, ok := First(procWith(t, links)); got != test.want || ok != test.ok {
			t.Errorf("%s: got %v, %v, want %v, %v", what, got, ok, test.want, test.ok)
		}
	}
}

// procWith makes a directory with links, in the form of /proc.
func procWith(t *testing.T, links map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for path, to := range links {
		path = filepath.Join(dir, path)
		expect.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		expect.NoError(t, os.Symlink(to, path))
	}
	return dir
}
