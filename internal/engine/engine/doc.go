// Package engine attaches containers to networks, looks after them, and detaches them. It
// implements package cni, which resolves options into a [Call] and converts the engine's
// results into its own types.
//
// An [Engine] has one set of options and loaded networks. Each verb is a method. Load makes
// another Engine, and calls under way keep theirs.
//
// A [Call] is what a verb is to do with one container, as values: its ID, the path of its
// network namespace, and a [Planned] for each attachment, which has the network and all
// parameters of its plugins.
//
// An operation is a call in progress: the container, locked, with its record and its
// namespaces, and the attachments of the call. The attachments of a container are on its
// record, with the configuration of their ADD. If the record is missing or damaged, they are
// found in libcni's cache and among the loaded networks. hooks answers the requests of an
// attachment's plugins.
//
// A Setup is in this order:
//
//  1. begin: the host's and the container's namespace are opened, or the latter is made.
//  2. makeRoom: the container is locked and its record is read. What is left of a dead
//     attachment under a wanted name is removed. A live one is refused, and so is an
//     interface that is on no record.
//  3. write: the record names the plugins and all parameters, and reserves ports of the host
//     (reservation). The namespace is pinned. Only then may a plugin change anything.
//  4. attach: the ADDs run, networks side by side. Each result is added to the record when a
//     plugin returns it.
//  5. If one fails, rollBack removes all that were begun. A transient failure is tried again
//     from step 3.
//
// A Remove is in this order; so is every other removal, by GC, Recover, Setup or the
// reaper, which decide for themselves what goes:
//
//  1. The parameters are validated before anything is touched. The container is locked, its
//     record is read, and the recorded namespaces are opened.
//  2. tearDown notes on the record which attachments go, then runs their DELs, last first.
//  3. sweep finds the plugins' leftovers, removes them, and looks again.
//  4. If nothing is left, forget deletes the attachments from the record, after released
//     addresses are on the disk, and with the last one the record. Errors of DELs that the
//     sweep covers are logged, or returned if the options want them.
//  5. Otherwise the attachments stay on record with the reason, for the next attempt, and the
//     error is an [outcome.LeftoverError].
//
// Calls for many containers are objects of their own: a collection is a GC, a recovery a
// Recover, a look compares containers for Health and for a Recover, repairs add what is
// missing, in rounds. The reaper removes, in the background, containers whose namespaces have
// ended.
package engine
