package cni

// WithoutReaping leaves abandoned containers to Remove, Recover and GC.
//
// Without it a Runtime looks after containers of its owner that nobody removes:
// some programs forget a container whose process is gone, and count on its
// network namespace to end with the process. A namespace is abandoned when the
// path that Setup was given no longer leads to it: there is nothing, an empty
// file, or another namespace. Then it is not kept alive any longer. Whether it
// ends is for the kernel to say: whoever else holds it, a process, a mount or a
// descriptor, keeps it. Once its end has taken the host's end of the container's
// veth pair along, the container is removed as by Remove with an empty path.
//
// That is so for bridge and ptp, with the reference plugins behind them that
// undo their work on the host. Other containers are only logged, once, at warning
// level, and stay as they are: with other plugins nothing on the host says whether
// the namespace has ended, and a device that host-device has lent would not come
// back. So stays what cannot be judged: a path that was recorded in another
// mount or PID namespace, by an earlier version, or as relative to a process
// (/proc/self), one that may not be read, a container that another call has
// locked, and one to which another owner has added.
//
// The work is done in the background: from the first Setup on, each call of
// Setup, Remove or Check starts a look at some of the records, unless one is
// under way or a round through all of them was made a moment ago. No call waits
// for it, but one for a container that is just being removed. A process that
// ends in the middle leaves nothing that a later one would not go on with.
func WithoutReaping() Opt {
	return func(c *config) error {
		c.withoutReaping = true
		return nil
	}
}
