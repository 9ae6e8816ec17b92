// Package cni attaches containers to networks through the Container Network
// Interface (CNI, specification 1.1.0). A container runtime or scheduler
// embeds it; it loads network configurations, runs their plugins on network
// namespaces, and returns which interface got which addresses.
//
// # Lifecycle
//
//	rt, err := cni.New(cni.WithPluginConfDir("/etc/cni/net.d"))
//	err = rt.Load(cni.WithLoNetwork, cni.WithDefaultConf)
//	result, err := rt.Setup(ctx, id, "/run/netns/"+id)
//	err = rt.Remove(ctx, id, "/run/netns/"+id)
//
// New and Load look at no plugin and need no directory to exist. Load builds a
// complete configuration and then replaces the old one, or fails and changes
// nothing. A program written for github.com/containerd/go-cni compiles
// unchanged; README.md lists what differs and why.
//
// # Guarantees
//
// Setup and SetupSerially either attach every network or, after an error, have
// asked the plugins to undo whatever they had begun; an undo that failed is
// part of the error. Remove asks every plugin of every network, whatever fails
// on the way and whether or not the caller's context is over. Everything a
// caller passes is validated before the first plugin runs. No lock is held
// while a plugin runs that a call for another container waits for, but for the
// first ADD of a network on a host, which runs alone because the plugins race
// to create what the host's containers share.
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
// Failures of plugins are of type *[Error], possibly several joined; the
// sentinels (ErrInvalidArgument, ErrInvalidNetNS, ErrAlreadyAttached, …) are
// found with errors.Is. Outside Linux, network namespaces are not looked at:
// the path is the platform's own and passed to the plugins as it is.
package cni
