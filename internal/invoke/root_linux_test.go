package invoke

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// TestARootSharesFiles: parts of a path that are nowhere do not matter, and a link may lead
// elsewhere inside.
func TestARootSharesFiles(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root changes its root directory")
	}
	root := t.TempDir()
	shared := t.TempDir()
	inside := filepath.Join(root, shared)
	expect.NoError(t, os.MkdirAll(filepath.Dir(inside), 0o755), os.Link(write(t, shared, "file"), filepath.Join(root, "file")))
	for path, same := range map[string]bool{
		shared:                                false, // there is none inside
		filepath.Join(shared, "networks/net"): false, // nor above it
		"/no/such/directory":                  false, // the roots are two directories
		"/file":                               false, // there is none outside
	} {
		if err := Root(root).Shares(path); (err == nil) != same {
			t.Errorf("%s: %v", path, err)
		}
	}
	for path, same := range map[string]bool{shared: true, filepath.Join(shared, "networks/net"): true, "/no/such/directory": true} {
		if err := Root("/").Shares(path); (err == nil) != same {
			t.Errorf("%s in the root itself: %v", path, err)
		}
	}
	if err := Root(filepath.Join(root, "none")).Shares(shared); err == nil {
		t.Error("a root that is missing shares files")
	}
}

func write(t *testing.T, dir, name string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	expect.NoError(t, os.WriteFile(path, nil, 0o644))
	return path
}

// TestAMissingRootIsNoMissingPlugin, so that no other plugin runs in its place.
func TestAMissingRootIsNoMissingPlugin(t *testing.T) {
	none := Root(filepath.Join(t.TempDir(), "none"))
	if _, err := none.Find("bridge", []string{"/bin"}, false); err == nil || errors.Is(err, ErrNotFound) {
		t.Errorf("Find: %v", err)
	}
	if err := none.Check("bridge", "/bin/bridge", false); err == nil || errors.Is(err, ErrNotFound) {
		t.Errorf("Check: %v", err)
	}
	if _, err := none.Find("bridge", []string{"/bin"}, true); err == nil || errors.Is(err, ErrNotFound) {
		t.Errorf("with insecure files: %v", err)
	}
	_, err := Run(t.Context(), Request{Path: "/bin/true", Root: none}, Limits{})
	expect.Is(t, err, ErrNotStarted)
}
