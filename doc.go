// Package cni attaches containers to networks through the Container Network
// Interface (CNI, specification 1.1.0). A container runtime or scheduler
// embeds it; it loads network configurations, runs their plugins on network
// namespaces, and returns which interface got which addresses.
//
//	rt, err := cni.New(cni.WithBuiltinFallback())
//	err = rt.Load(cni.WithLoNetwork, cni.WithDefaultConf) // /etc/cni/net.d
//	report, err := rt.Recover(ctx)                        // of containers from before a restart
//	result, err := rt.Setup(ctx, "web-1", "", cni.WithNewNetNS())
//	err = netns.Do(result.NetNS, command.Start)
//	err = rt.Remove(ctx, "web-1", "")
//
// A program written for github.com/containerd/go-cni compiles unchanged; docs/go-cni.md
// lists the differences. docs/guarantees.md says what each call promises: nothing alive is
// harmed, and nothing dead remains.
//
// # Which call when
//
//   - [New] and [Runtime.Load] read configurations. They look at no plugin, and need no
//     directory to exist. Load replaces all networks, or fails and changes nothing.
//   - [Runtime.Recover], once at the start, keeps the containers of an earlier run that live,
//     repairs them, and removes the dead.
//   - [Runtime.Setup] attaches a container to its networks, or undoes everything.
//     [Runtime.SetupSerially] does so one network after the other.
//   - [Runtime.Remove] detaches it. It needs its ID alone, and is repeated until it returns nil.
//     [Runtime.RetryRemovals] repeats those that failed. [Runtime.CleanUp] ends an attachment
//     that Remove cannot.
//   - [Runtime.GC], from time to time, removes containers that are recorded and not wanted.
//   - [Runtime.Repair] and [Runtime.RepairAll] add what a living container has lost.
//     [guard.Run] calls them whenever the kernel announces a loss, and [reconcile.Run] for a
//     scheduler that has restarted.
//
// # Is it all right?
//
//   - [Runtime.Status]: can containers be attached? It is go-cni's question, with one reason
//     at most. [Runtime.StatusOf] asks it of configurations that are not loaded.
//   - [Runtime.Ready]: could a Setup of all networks succeed now? It has every reason why not.
//   - [Runtime.Health]: which containers lack something, and what? It compares them with the
//     kernel, many at once, and asks plugins that may know more. It has a verdict on each.
//   - [Runtime.Check]: what do the plugins of one container say? It is go-cni's, and CNI's CHECK.
//   - [Runtime.Attachments], [Runtime.Lookup], [Runtime.LookupAddr]: what is on record? They
//     ask nobody, and say nothing about the kernel.
//   - [Runtime.Plan], and DryRun of [GCOptions] and [CleanUpTarget]: what would be done?
//
// # Where networks come from
//
//   - [WithDefaultConf]: the first files of the directory [WithPluginConfDir], as many as
//     [WithPluginMaxConfNum] says; [WithAllConf]: all of them
//   - [WithConfListFile], [WithConfListBytes]: a list of plugins, from a file or from memory
//   - [WithConfFile], [WithConf], [WithConfIndex]: a single plugin, as before lists; only the last
//     chooses its interface
//   - [WithLoNetwork]: the loopback interface
//   - [WithNetworkConfig]: a list for one call, which is never loaded
//   - [Runtime.Reload] reads the files again, and [netconf.Watch] does so when they change.
//     Package netconf also writes configurations. [Runtime.GetConfig], [Runtime.Networks],
//     [Runtime.Gateways] and [Runtime.Sources] say what is loaded, and from where.
//
// # Options of New and Load
//
//   - plugins: [WithPluginDir], [WithPluginEnv], [WithPluginRoot], [WithInsecureFiles]; in process:
//     [WithPlugin], [WithBuiltinPlugins], [WithBuiltinFallback]
//   - time: [WithTimeouts], [WithRetry], [WithoutReaping]
//   - the host: [WithHostNetNS], [WithPortRange], [WithStrictPorts], [WithStrictCapabilities]
//   - records: [WithStateDir], [WithRecordDir], [WithOwner]
//   - what is seen: [WithLogger], [WithObserver]
//   - go-cni's: [WithInterfacePrefix], [WithMinNetworkCount]
//
// # Options of one call
//
//   - where: [WithNewNetNS]; [WithNetwork] and [WithInterfaceName] select and name networks
//   - ports: [WithPorts], which also chooses some; [WithCapabilityPortMap] is go-cni's
//   - addresses: [WithCapabilityIPs], [WithCapabilityMAC], [WithCapabilityIPRanges],
//     [WithCapabilityIPRangeSets]
//   - traffic and names: [WithCapabilityBandWidth], [WithCapabilityDNS],
//     [WithCapabilityCgroupPath], and any other by [WithCapability]
//   - arguments of plugins: [WithArgs], [WithLabels], [WithConfigArgs]
//   - the caller's own values: [WithMetadata], [Runtime.SetMetadata]
//   - for programs that are plugins themselves, or serve some: [WithPrevResult], [WithPluginDirOrder]
//
// # Concurrency and namespaces
//
// A Runtime is safe for concurrent use. Calls for one container run one after the other,
// including those of other processes with the same state directory; calls for different
// containers run in parallel. One Runtime is enough for a program.
//
// A container's network namespace is the caller's, at a path such as /run/netns/web or
// /proc/PID/ns/net, or Setup makes it. Plugins run in the network namespace of the calling
// thread, or in that of WithHostNetNS. Off Linux the path is the platform's own, and passed to
// the plugins unchanged.
//
// # Errors
//
// A failure of a plugin is an *[Error], and what remains of a container a *[LeftoverError];
// several are joined. The sentinels, such as [ErrAlreadyAttached], are found with errors.Is.
// Package outcome has all of them, and the reports.
//
// [guard.Run]: https://pkg.go.dev/github.com/embedcni/cni/guard#Run
// [netconf.Watch]: https://pkg.go.dev/github.com/embedcni/cni/netconf#Watch
// [reconcile.Run]: https://pkg.go.dev/github.com/embedcni/cni/reconcile#Run
package cni
