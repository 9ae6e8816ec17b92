package spare

import "golang.org/x/sys/unix"

// renameNew renames unless there is a file of that name.
func renameNew(from, to string) error {
	for {
		err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
		if err != unix.EINTR {
			return err
		}
	}
}
