package netns

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

func TestPinKeepsTheNamespaceWhenItsOwnPathIsGone(t *testing.T) {
	dir := t.TempDir()
	h, err := Create(filepath.Join(dir, "own"))
	expect.NoError(t, err)
	want := h.ID()
	kept := filepath.Join(dir, "deep", "down", "kept")
	for range 2 { // the second call finds it done
		expect.NoError(t, Pin(h, kept))
	}
	for _, err := range []error{Remove(filepath.Join(dir, "own")), h.Close()} {
		expect.NoError(t, err)
	}
	again, err := Open(kept)
	expect.NoError(t, err)
	if again.ID() != want {
		t.Errorf("namespace %s, want %s", again.ID(), want)
	}
	for _, err := range []error{again.Close(), Remove(kept)} {
		if err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Lstat(kept); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after Remove: %v", err)
	}
}

func TestPinUsesAnEmptyFileAndRefusesAnotherNamespace(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "kept")
	expect.NoError(t, os.WriteFile(path, nil, 0o600))
	var handles []*Handle
	for _, name := range []string{"a", "b"} {
		h, err := Create(filepath.Join(dir, name))
		expect.NoError(t, err)
		handles = append(handles, h)
	}
	expect.NoError(t, Pin(handles[0], path))
	if err := Pin(handles[1], path); !errors.Is(err, fs.ErrExist) {
		t.Errorf("pin over another namespace: %v, want fs.ErrExist", err)
	}
	for _, err := range []error{
		Remove(path), Remove(filepath.Join(dir, "a")), Remove(filepath.Join(dir, "b")),
		handles[0].Close(), handles[1].Close(),
	} {
		if err != nil {
			t.Error(err)
		}
	}
}
