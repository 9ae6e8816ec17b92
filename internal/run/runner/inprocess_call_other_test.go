//go:build !linux

package runner

// ownNetNS is an example of a container's network on a platform other than
// Linux.
const (
	ownNetNS = "a-name-of-the-platforms-own"
	hasNetNS = false
)
