package backend_test

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/thick/backend"
)

// TestANameThatWasUsedLeavesNoFile: pods come with networks of ever new names.
func TestANameThatWasUsedLeavesNoFile(t *testing.T) {
	s := newStage(t)
	b := backend.New(s.runtime, backend.Options{})
	var first []string
	for i := range 20 {
		r := s.request("c1", "eth0", delegating(fmt.Sprint("node", i), delegate("", "p"), delegate(fmt.Sprint("more", i), "q")))
		expect.Value(b.Add(t.Context(), r))(t)
		expect.NoError(t, b.Del(t.Context(), r), b.Del(t.Context(), r))
		files := s.files()
		if i == 0 {
			first = files
		}
		expect.Same(t, "files", files, first)
	}
}

// files returns the files in the state directory.
func (s *stage) files() (files []string) {
	s.T.Helper()
	expect.NoError(s.T, filepath.WalkDir(s.Path("state"), func(path string, _ fs.DirEntry, err error) error {
		files = append(files, path)
		return err
	}))
	return files
}
