// Package nsfind finds network namespaces: by path, mount and descriptor, and by
// the threads in them.
package nsfind

// FirstMountNS is the path of the mount namespace of the first process of the
// machine, or of the container in which this program runs.
const FirstMountNS = "/proc/1/ns/mnt"
