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
// compiles unchanged, and need call neither of them: Setup and Remove end the
// plugins of a dead runtime and clear dead attachments, and containers that nobody
// removes go in the background (see WithoutReaping). README.md lists the
// differences. Release hands containers back to go-cni.
//
// # Guarantees
//
// Nothing alive is harmed: no call takes anything from a container that lives and
// is not the call's own. A container that cannot be asked is kept and reported.
//
// Nothing dead is left. Before the first plugin runs, the attachment is on record;
// the record is on the disk before anything is made that survives a power cut, and
// the namespace is kept alive until the container is detached, or its path no
// longer leads there. Setup attaches every network or
// undoes whatever was begun; the error names the rest. Remove goes by
// the record: it needs no loaded configuration and no options, asks every plugin
// of every network whatever fails and whether or not the context is over, then
// sweeps what the reference plugins leave, and returns nil only if it has seen
// that nothing is. What cannot be removed stays on record for the next Remove,
// Recover or GC. CleanUp ends what none of them can. Everything a caller passes
// is validated before anything is touched. No lock is held while a plugin runs
// that a call for another container waits for, except by GC, and for two seconds by
// the first ADD of a plugin type about which the library does not know what its
// containers share.
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
