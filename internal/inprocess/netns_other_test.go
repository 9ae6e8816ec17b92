//go:build !linux

package inprocess

// ownNetNS is what a platform other than Linux may call a container's network.
const (
	ownNetNS = "a-name-of-the-platforms-own"
	hasNetNS = false
)
