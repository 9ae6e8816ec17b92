// Package perm reports whether somebody else could have written what the
// runtime is about to trust: a configuration that decides which program runs
// as root, or that program itself.
package perm

import "errors"

// ErrInsecure is behind every refusal of this package.
var ErrInsecure = errors.New("insecure file")

// Check refuses a file that every user of the machine may replace or write. It looks at the file, at each directory from the root of the
// file system down to it, and at each symbolic link on the way with the
// directories of its target:
//
//   - none may be writable by everybody, but for a directory with the sticky
//     bit, where only the owner replaces an entry;
//   - in such a directory each must be owned by root or by the effective user of
//     this process, since anybody could have made it. In a user namespace an
//     owner without a number there passes as well: the host's root is one.
//
// Elsewhere another owner and the write bit of a group are no concern:
// administrators have users and groups of theirs install plugins, and archives of
// plugins are unpacked with the numbers of who packed them.
//
// It costs a system call for each part of the path. Off Unix, where mode bits say
// nothing about access, nothing is refused.
func Check(path string) error {
	return check(path)
}
