package netns

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestPinKeepsTheNamespaceWhenItsOwnPathIsGone(t *testing.T) {
	dir := t.TempDir()
	h, err := Create(filepath.Join(dir, "own"))
	if err != nil {
		t.Fatal(err)
	}
	want := h.ID()
	kept := filepath.Join(dir, "deep", "down", "kept")
	for range 2 { // the second call finds it done
		if err := Pin(h, kept); err != nil {
			t.Fatal(err)
		}
	}
	for _, err := range []error{Remove(filepath.Join(dir, "own")), h.Close()} {
		if err != nil {
			t.Fatal(err)
		}
	}
	again, err := Open(kept)
	if err != nil {
		t.Fatal(err)
	}
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
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var handles []*Handle
	for _, name := range []string{"a", "b"} {
		h, err := Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		handles = append(handles, h)
	}
	if err := Pin(handles[0], path); err != nil {
		t.Fatal(err)
	}
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
