// Package nsfind finds network namespaces: by path, mount and descriptor, and by
// the threads in them.
package nsfind

// FirstMountNS is the mount namespace of the machine's first process, or of the
// first process of the container that this program runs in.
const FirstMountNS = "/proc/1/ns/mnt"
