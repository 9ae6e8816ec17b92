//go:build unix

package perm

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// put makes a file and its directory with these modes, ignoring the umask.
func put(t *testing.T, path string, dir, file fs.FileMode) {
	t.Helper()
	err := errors.Join(
		os.MkdirAll(filepath.Dir(path), 0o755),
		os.WriteFile(path, nil, 0o644),
		os.Chmod(path, file), os.Chmod(filepath.Dir(path), dir),
	)
	if err != nil {
		t.Fatal(err)
	}
}

func TestCheckRefusesWorldWritableFiles(t *testing.T) {
	for _, c := range []struct {
		name      string
		dir, file fs.FileMode
		refused   string // one of them; empty: neither
	}{
		{name: "an administrator's", dir: 0o755, file: 0o755},
		{name: "private", dir: 0o700, file: 0o600},
		{name: "a group's", dir: 0o775, file: 0o775},
		{name: "everybody's file", dir: 0o755, file: 0o646, refused: "etc/bridge"},
		{name: "everybody's file that nobody reads", dir: 0o755, file: 0o602, refused: "etc/bridge"},
		{name: "everybody's directory", dir: 0o777, file: 0o755, refused: "etc"},
		{name: "a directory like /tmp", dir: 0o777 | fs.ModeSticky, file: 0o755},
		{name: "everybody's file in a directory like /tmp", dir: 0o777 | fs.ModeSticky, file: 0o777, refused: "etc/bridge"},
	} {
		root := t.TempDir()
		path := filepath.Join(root, "etc", "bridge")
		put(t, path, c.dir, c.file)
		wantRefused(t, c.name, root, Check(path), c.refused)
	}
}

// wantRefused compares the path in an error.
func wantRefused(t *testing.T, name, root string, err error, refused string) {
	t.Helper()
	if refused == "" {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		return
	}
	said := filepath.Join(root, refused) + " (mode "
	if !errors.Is(err, ErrInsecure) || !strings.HasPrefix(err.Error(), said) {
		t.Errorf("%s: %v, want it to begin with %q", name, err, said)
	}
}

// TestCheckLooksAtBothEndsOfALink: for a symbolic link it checks the link's
// directory, where the link could be replaced, and the target with the target's
// directory.
func TestCheckLooksAtBothEndsOfALink(t *testing.T) {
	for _, c := range []struct {
		name               string
		links, files, file fs.FileMode
		refused            string
	}{
		{name: "sound", links: 0o755, files: 0o755, file: 0o755},
		{name: "the link can be replaced", links: 0o777, files: 0o755, file: 0o755, refused: "links"},
		{name: "the file can be replaced", links: 0o755, files: 0o777, file: 0o755, refused: "files"},
		{name: "the file can be written", links: 0o755, files: 0o755, file: 0o777, refused: "files/bridge-1"},
	} {
		root, err := filepath.EvalSymlinks(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		put(t, filepath.Join(root, "files", "bridge-1"), c.files, c.file)
		put(t, filepath.Join(root, "links", "other"), c.links, 0o644)
		link := filepath.Join(root, "links", "bridge")
		if err := os.Symlink("../files/bridge-1", link); err != nil {
			t.Fatal(err)
		}
		wantRefused(t, c.name, root, Check(link), c.refused)
	}
}

func TestCheckOfAMissingFile(t *testing.T) {
	root := t.TempDir()
	dangling := filepath.Join(root, "dangling")
	if err := os.Symlink("nowhere", dangling); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(root, "none"), dangling} {
		if err := Check(path); !errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrInsecure) {
			t.Errorf("%s: %v", path, err)
		}
	}
}
