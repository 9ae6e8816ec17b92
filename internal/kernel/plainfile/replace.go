package plainfile

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/embedcni/cni/internal/kernel/joined"
)

// Replace makes data the content of the file at path. At each moment, also after a power
// cut, the file has either its old content or the new. It has the mode perm, whatever
// the umask.
//
// A file that has the content and the mode already is left as it is, so that whoever has
// it open or mounted keeps it. Otherwise the file is another one afterwards, also if path
// was a symbolic link. A process that is killed in between leaves a file with the name of
// path, a point before it, and a random end.
func Replace(path string, data []byte, perm fs.FileMode) error {
	if Has(path, data, perm) {
		return nil
	}
	dir, name := filepath.Split(path)
	f, err := os.CreateTemp(filepath.Clean(dir+"."), "."+name+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = joined.Errors(f.Chmod(perm), f.Sync())
	}
	if err = joined.Errors(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return joined.Errors(err, os.Remove(f.Name()))
	}
	return nil
}

// Has reports whether there is a regular file with that content and mode.
func Has(path string, data []byte, perm fs.FileMode) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != perm || info.Size() != int64(len(data)) {
		return false
	}
	now, err := ReadUpTo(path, len(data))
	return err == nil && bytes.Equal(now, data)
}

// SyncDir syncs a directory, so that file names and deletions in it survive a power cut.
func SyncDir(dir string) error {
	d, err := Open(dir, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	return joined.Errors(d.Sync(), d.Close())
}
