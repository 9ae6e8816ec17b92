package container

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// TestAPinIsANameOfTheLockFile, unless a mount on it would be elsewhere, or Remove
// would refuse it.
func TestAPinIsANameOfTheLockFile(t *testing.T) {
	write := func(data string) func(t *testing.T, path string) {
		return func(t *testing.T, path string) { expect.NoError(t, os.WriteFile(path, []byte(data), 0o600)) }
	}
	for what, test := range map[string]struct {
		lock, pin    func(t *testing.T, path string)
		linked, left bool
	}{
		"an empty lock file": {write(""), nil, true, true},
		"no lock file":       {nil, nil, false, false},
		"a link to one": {func(t *testing.T, path string) {
			write("")(t, path+".real")
			expect.NoError(t, os.Symlink(path+".real", path))
		}, nil, false, false},
		"one that holds something":        {write("x"), nil, false, false},
		"a file that an earlier pin left": {write(""), write(""), false, true},
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			lockFile := filepath.Join(dir, "locks")
			p := NewPins(dir, lockFile)
			expect.NoError(t, os.Mkdir(p.dir, 0o700))
			pin := p.path("c1")
			if test.lock != nil {
				test.lock(t, lockFile)
			}
			if test.pin != nil {
				test.pin(t, pin)
			}
			expect.Same(t, "linked", p.link(pin), test.linked)
			its, err := os.Lstat(pin)
			expect.Same(t, "there is a file", err == nil, test.left)
			if test.linked {
				lock, err := os.Stat(lockFile)
				expect.NoError(t, err)
				expect.Same(t, "it is the lock file", os.SameFile(its, lock), true)
			}
		})
	}
}
