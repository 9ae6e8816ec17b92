//go:build unix

package plainfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// put makes a file and its directory with these modes, ignoring the umask.
func put(t *testing.T, path string, dir, file fs.FileMode) {
	t.Helper()
	expect.NoError(t, errors.Join(
		os.MkdirAll(filepath.Dir(path), 0o755),
		os.WriteFile(path, nil, 0o644),
		os.Chmod(path, file), os.Chmod(filepath.Dir(path), dir),
	))
}

// stranger is a user other than root and the tests' user.
const stranger = 4711

// TestFault_F52_AParentThatAnybodyCanWriteIsRefused: the plugins' directory is
// safe, but one above it is not.
func TestFault_F52_AParentThatAnybodyCanWriteIsRefused(t *testing.T) {
	for _, c := range []struct {
		name    string
		change  func(root string) error
		refused string // relative to the root; empty: none
	}{
		{"all is root's", func(string) error { return nil }, ""},
		{"a parent that everybody writes", func(root string) error { return os.Chmod(filepath.Join(root, "opt"), 0o777) }, "opt"},
		{"its parent", func(root string) error { return os.Chmod(root, 0o777) }, "."},
		{"a parent like /tmp", func(root string) error { return os.Chmod(filepath.Join(root, "opt"), 0o777|fs.ModeSticky) }, ""},
		{"a directory that a stranger made in one like /tmp", func(root string) error {
			return errors.Join(os.Chmod(filepath.Join(root, "opt"), 0o777|fs.ModeSticky), os.Chown(filepath.Join(root, "opt/cni"), stranger, 0))
		}, "opt/cni"},
		{"a stranger's parent", func(root string) error { return os.Chown(filepath.Join(root, "opt"), stranger, 0) }, ""},
		{"a stranger's file", func(root string) error { return os.Chown(filepath.Join(root, "opt/cni/bin/bridge"), stranger, 0) }, ""},
		{"a group's parent", func(root string) error { return os.Chmod(filepath.Join(root, "opt"), 0o775) }, ""},
		{"a link to a directory in one that everybody writes", func(root string) error {
			return errors.Join(
				os.Mkdir(filepath.Join(root, "srv"), 0o755),
				os.Rename(filepath.Join(root, "opt/cni"), filepath.Join(root, "srv/cni")),
				os.Symlink("../srv/cni", filepath.Join(root, "opt/cni")),
				os.Chmod(filepath.Join(root, "srv"), 0o777))
		}, "srv"},
		{"a stranger's link in a directory like /tmp", func(root string) error {
			return errors.Join(
				os.Rename(filepath.Join(root, "opt/cni"), filepath.Join(root, "cni")),
				os.Chmod(filepath.Join(root, "opt"), 0o777|fs.ModeSticky),
				os.Symlink(filepath.Join(root, "cni"), filepath.Join(root, "opt/cni")),
				os.Lchown(filepath.Join(root, "opt/cni"), stranger, 0))
		}, "opt/cni"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if os.Geteuid() != 0 {
				t.Skip("only root gives files away")
			}
			root, err := filepath.EvalSymlinks(t.TempDir())
			expect.NoError(t, err)
			path := filepath.Join(root, "opt/cni/bin/bridge")
			put(t, path, 0o755, 0o755)
			expect.NoError(t, c.change(root))
			err = Trust(path)
			if c.refused == "" {
				expect.Succeeds(t, "refused", err)
				return
			}
			said := filepath.Join(root, c.refused) + " (mode "
			expect.That(t, errors.Is(err, ErrInsecure) && strings.HasPrefix(err.Error(), said),
				"got %v, want a refusal that begins with %q", err, said)
		})
	}
}

// TestAcceptedDirectories, as the kubelet makes one of a ConfigMap: a directory that everybody
// writes, with links to the files of the present state.
func TestAcceptedDirectories(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "volumes/networks/10-pods.conflist")
	put(t, filepath.Join(root, "volumes/networks/..1/10-pods.conflist"), 0o755, 0o644)
	expect.NoError(t, errors.Join(
		os.Symlink("..1", filepath.Join(root, "volumes/networks/..data")),
		os.Symlink("..data/10-pods.conflist", path),
		os.Symlink("volumes", filepath.Join(root, "link")),
		os.Chmod(filepath.Join(root, "volumes/networks"), 0o777)))
	for dir, accepted := range map[string]bool{
		"volumes/networks": true, "volumes": true, ".": true, "link": true, "/": true,
		"volumes/network": false, "volumes/networks/..1": false, "missing": false,
	} {
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(root, dir)
		}
		err := TrustUnless([]string{dir}, path)
		expect.That(t, accepted == !errors.Is(err, ErrInsecure), "with %s: %v", dir, err)
	}
	expect.NoError(t, os.Chmod(root, 0o777))
	expect.That(t, errors.Is(TrustUnless([]string{filepath.Dir(path)}, path), ErrInsecure), "a parent that everybody writes was accepted")
}

// TestAnOwnerWithoutANumber: in a user namespace the host's root has no number,
// and owns the system's directories.
func TestAnOwnerWithoutANumber(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}
	root := t.TempDir()
	path := filepath.Join(root, "opt/cni/bin/bridge")
	put(t, path, 0o755, 0o755)
	if err := errors.Join(os.Chmod(filepath.Join(root, "opt"), 0o777|fs.ModeSticky), os.Chown(filepath.Join(root, "opt/cni"), overflowUID, 0)); err != nil {
		t.Skip("the user namespace has no such number: ", err)
	}
	expect.Same(t, "refused", errors.Is(Trust(path), ErrInsecure), !inUserNS())
}

func TestTrustEndsInALoopOfLinks(t *testing.T) {
	link := filepath.Join(t.TempDir(), "link")
	expect.NoError(t, os.Symlink("link", link))
	err := Trust(link)
	expect.That(t, err != nil && !errors.Is(err, ErrInsecure), "got %v, want the kernel's error", err)
}
