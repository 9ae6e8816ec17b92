package cni

// WithoutReaping turns off the background removal of abandoned containers. Only
// Remove, Recover and GC then remove them.
//
// By default a Runtime removes containers of its owner that nobody else removes:
// some programs forget a container whose process is gone, and expect its network
// namespace to end with the process. A container is abandoned when the path that
// was given to Setup no longer leads to its namespace: the path does not exist, or
// is an empty file or another namespace. The Runtime then stops keeping the
// namespace alive. The kernel ends the namespace unless a process, a mount or a
// descriptor still holds it. When the namespace ends, the host's end of the
// container's veth pair vanishes. The container is then removed as by Remove with
// an empty path.
//
// This applies to bridge and ptp, alone or followed by reference plugins that
// undo their work on the host. Other containers are logged once, at warning
// level, and stay: with other plugins the host does not show whether the namespace
// has ended, and a device that host-device moved into it would not come back.
// Containers that cannot be judged stay too: the path was recorded in another
// mount or PID namespace, by an earlier version, or relative to a process
// (/proc/self); the path cannot be read; another call has locked the container; or
// another owner has attached it too.
//
// The work runs in the background. From the first Setup on, each call of Setup,
// Remove or Check requests a scan of all records, which runs in short passes with
// pauses between them. No call waits for a scan, except a call for a container
// that is being removed at that moment. If the process ends during a removal, a
// later process continues it.
func WithoutReaping() Opt {
	return func(c *config) error {
		c.withoutReaping = true
		return nil
	}
}
