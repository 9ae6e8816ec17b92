// Package perm reports whether somebody else could have written what the
// runtime is about to trust: a configuration that decides which program runs
// as root, or that program itself.
package perm

import "errors"

// ErrInsecure is behind every refusal of this package.
var ErrInsecure = errors.New("insecure file")

// Check refuses a file that others than root and this process's user may
// replace or write. It looks at the file, at each directory from the root of the
// file system down to it, and at each symbolic link on the way with the
// directories of its target:
//
//   - none may be writable by everybody, but for a directory with the sticky
//     bit, where only the owner replaces an entry;
//   - each must be owned by root or by the effective user of this process. In a
//     user namespace an owner without a number there passes as well: the host's
//     root is one.
//
// The write bit of a group is no concern here: administrators let a group of
// theirs install plugins.
//
// It costs a system call for each part of the path. Off Unix, where mode bits say
// nothing about access, nothing is refused.
func Check(path string) error {
	return check(path)
}
