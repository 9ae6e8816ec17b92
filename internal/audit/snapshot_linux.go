package audit

import (
	"context"
	"fmt"
	"runtime"
	"slices"
)

// Snapshot lists what exists now in the network namespace of the calling
// thread, in the directories of o, and in the calling process.
//
// All of it happens on the calling goroutine, so it can be called in
// netns.Handle.Do. It needs CAP_NET_ADMIN over the namespace. What it cannot
// read is an error, not an omission; only what disappears while it looks is
// passed over.
//
// It takes some ten milliseconds, most of them in iptables.
func Snapshot(ctx context.Context, o Options) (Lines, error) {
	// The processes must be started in the namespace that netlink is asked
	// about, also when the caller had no reason to lock.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	// Descriptors last, as the others are done with theirs by then.
	parts := []part{
		{"kernel objects", listNetlink},
		{"packet filters", func() ([]string, error) { return listFilters(ctx) }},
		{"files", func() ([]string, error) { return listFiles(o.StateDirs) }},
		{"network namespaces", func() ([]string, error) { return listNetNS(o.NetNSDirs) }},
	}
	if !o.WithoutProcess {
		parts = append(parts,
			part{"mounts", func() ([]string, error) { return listMounts(slices.Concat(o.StateDirs, o.NetNSDirs)) }},
			part{"processes", listProcesses},
			part{"file descriptors", listDescriptors})
	}
	var all Lines
	for _, part := range parts {
		lines, err := part.list()
		if err != nil {
			return nil, fmt.Errorf("audit %s: %w", part.name, err)
		}
		all = append(all, lines...)
	}
	slices.Sort(all)
	return all, nil
}

// part is what lists one kind of things.
type part struct {
	name string
	list func() ([]string, error)
}
