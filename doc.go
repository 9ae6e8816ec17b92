// Package cni attaches containers to networks through the Container Network
// Interface (CNI, specification 1.1.0). A container runtime or scheduler
// embeds it; it loads network configurations, runs their plugins on network
// namespaces, and returns which interface got which addresses.
//
// # Lifecycle
//
//	rt, err := cni.New(cni.WithPluginConfDir("/etc/cni/net.d"))
//	err = rt.Load(cni.WithLoNetwork, cni.WithDefaultConf)
//	report, err := rt.Recover(ctx) // for id, why := range report.Kept: alive, not known to be healthy
//	result, err := rt.Setup(ctx, id, "/run/netns/"+id)
//	err = rt.Remove(ctx, id, "/run/netns/"+id)
//	report, err = rt.GC(ctx, cni.GCOptions{Keep: ids})
//
// New and Load look at no plugin and need no directory to exist. Load builds a
// complete configuration and then replaces the old one, or fails and changes
// nothing. Recover, once at the start, keeps the containers of an earlier run
// whose namespaces live and removes the rest; GC removes containers that are
// recorded and not wanted. A program written for github.com/containerd/go-cni
// compiles unchanged, and need not call Recover or GC: Setup and Remove end the
// plugins of a dead runtime and clear dead attachments, and abandoned containers are
// removed in the background (see WithoutReaping). docs/go-cni.md lists the differences.
//
// # Health and repair
//
// Health compares containers with their records, and asks plugins that may know more for
// CHECK. Repair adds the missing parts of a container. Package guard does so by itself,
// whenever the kernel announces a loss; its Hold keeps it, and Recover, from what an
// administrator has taken away. Attachments, Lookup and LookupAddr answer from the records alone.
//
// # Guarantees
//
// Nothing alive is harmed: no call takes anything from a live container other
// than its own. A container whose state is unknown is kept and reported.
//
// Nothing dead remains. Before the first plugin runs, the attachment is on
// record; the record is on the disk before anything is made that survives a
// power cut, and the namespace is kept alive until the container is detached, or
// its path no longer leads there. Setup attaches every network or undoes
// everything that it has begun; the error lists anything that it could not undo.
// Remove follows the record: it needs no loaded configuration and no options. It
// asks every plugin of every network, also after an error and after the context
// has ended, and then removes the leftovers of the reference plugins. It returns
// nil only after verifying that nothing remains. Attachments that cannot be
// removed stay on record for the next Remove, Recover or GC. CleanUp removes
// those that none of them can remove. All arguments are validated before
// anything is touched. A running plugin never blocks calls for other containers,
// with two exceptions: during GC, and for up to two seconds during the first ADD
// of a plugin type whose shared rules the library does not know.
//
// # Plugins
//
// A plugin that WithPlugin has registered for the type runs in process; else an
// executable in the plugin directories. With WithBuiltinPlugins this module's own
// plugins run in process instead, and with WithBuiltinFallback those of the types that are
// in no directory. Package plugin explains how to write one.
//
// # Concurrency
//
// A Runtime is safe for concurrent use. Calls for one container run one after
// the other, including those of other processes with the same state directory;
// calls for different containers run in parallel. One Runtime is enough for a program; one
// with a Runtime for each container has in memory once what they know of all containers.
//
// # Namespaces
//
// A container's network namespace is the caller's, at a path such as /run/netns/web or
// /proc/PID/ns/net, or Setup makes it (WithNewNetNS). netns.Do starts a process in it.
//
// Plugins run in the network namespace of the calling thread, or in the one that
// WithHostNetNS names. To use another one, lock the thread, enter it, call.
//
// # Errors
//
// Failures of plugins are of type *[Error], possibly several joined. The
// leftovers of a container are a *[LeftoverError]. The sentinels
// (ErrInvalidArgument, ErrInvalidNetNS, ErrAlreadyAttached, …) are found with
// errors.Is. Off Linux, network namespaces are opaque: the path is the
// platform's own and passed to the plugins unchanged.
package cni
