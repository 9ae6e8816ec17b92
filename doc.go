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
// removed in the background (see WithoutReaping). README.md lists the differences.
// Release hands containers back to go-cni.
//
// # Guarantees
//
// Nothing alive is harmed: no call takes anything from a container that lives and
// is not the call's own. A container that cannot be asked is kept and reported.
//
// Nothing dead is left. Before the first plugin runs, the attachment is on record;
// the record is on the disk before anything is made that survives a power cut, and
// the namespace is kept alive until the container is detached, or its path no
// longer leads there. Setup attaches every network or undoes all that it has begun;
// the error lists anything that it could not undo. Remove goes by the record: it
// needs no loaded configuration and no options. It asks every plugin of every
// network, also after an error and after the context has ended, and then removes
// the remains of the reference plugins. It returns nil only after verifying that
// nothing remains. Attachments that cannot be removed stay on record for the next
// Remove, Recover or GC. CleanUp gives up those that none of them can remove. All
// arguments are validated before anything is touched. A running plugin never blocks
// calls for other containers, with two exceptions: during GC, and for up to two
// seconds during the first ADD of a plugin type whose shared rules the library does
// not know.
//
// # Plugins
//
// What WithPlugin has registered for a type runs in process; else an executable
// in the plugin directories; else what is built in (see WithBuiltinPlugins and
// WithoutBuiltinPlugins). Package plugin says how to write one.
//
// # Concurrency
//
// A Runtime may be used by any number of goroutines. Calls for one container
// follow one another, those of other processes with the same state directory
// included; calls for different containers are parallel.
//
// # Namespaces
//
// Plugins run in the network namespace of the thread that calls, or in the one
// WithHostNetNS names. To use another one, lock the thread, enter it, call.
//
// # Errors
//
// Failures of plugins are of type *[Error], possibly several joined; what is
// left of a container is a *[LeftoverError]; the sentinels (ErrInvalidArgument,
// ErrInvalidNetNS, ErrAlreadyAttached, …) are found with errors.Is. Outside
// Linux, network namespaces are not looked at: the path is the platform's own
// and passed to the plugins as it is.
package cni
