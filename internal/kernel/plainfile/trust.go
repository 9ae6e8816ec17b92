package plainfile

import (
	"errors"
	"fmt"
)

// ErrInsecure is behind every refusal of [Trust].
var ErrInsecure = errors.New("insecure file")

// Trust refuses a file that every user of the machine may replace or write: a program that
// is to run as root, or a configuration that names one. It examines the file, each
// directory from the root of the file system down to it, and each symbolic link on the way
// with the directories of its target:
//
//   - none may be writable by everybody, but for a directory with the sticky
//     bit, where only the owner replaces an entry;
//   - in such a directory each must be owned by root or by the effective user of
//     this process, since anybody could have made it. In a user namespace an
//     owner without a number there is accepted too: the host's root is one.
//
// Elsewhere any owner and write permission of a group are accepted: administrators
// install plugins as users and groups of their own, and unpacked archives keep the
// packer's user ID.
//
// It costs a system call for each part of the path. Off Unix, where mode bits do not
// describe access, nothing is refused.
func Trust(path string) error { return trust(path, nil) }

// TrustUnless is Trust, but accepts these directories and whatever is in them: those of the
// caller's option WithInsecureFiles. A refusal names the option.
func TrustUnless(accepted []string, path string) error {
	err := trust(path, accepted)
	if errors.Is(err, ErrInsecure) {
		return fmt.Errorf("%w, or allow insecure files (WithInsecureFiles)", err)
	}
	return err
}
