package audit

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
)

// Snapshot lists the current state of the calling thread's network namespace,
// of the directories of o, and of the calling process.
//
// It runs on the calling goroutine only, so it may be called in
// netns.Handle.Do. It needs CAP_NET_ADMIN over the namespace. If something
// cannot be read, Snapshot fails. It only skips things that disappear while it
// reads them.
//
// It takes some ten milliseconds, most of them in iptables.
func Snapshot(ctx context.Context, o Options) (Lines, error) {
	// The processes must start in the namespace that netlink reads, even if the
	// caller has not locked its thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	// Descriptors last, when the other parts have closed theirs.
	parts := []part{
		{"kernel objects", listNetlink},
		{"packet filters", func() ([]string, error) { return listFilters(ctx) }},
		{"files", func() ([]string, error) { return listFiles(o.StateDirs) }},
		{"network namespaces", func() ([]string, error) { return listNetNS(o.NetNSDirs) }},
	}
	if !o.WithoutProcess {
		parts = append(parts, ofProcess(slices.Concat(o.StateDirs, o.NetNSDirs))...)
	}
	all, err := list(parts)
	for _, line := range all {
		if tool, blind := strings.CutPrefix(line, "missing "); blind && o.Complete {
			return nil, fmt.Errorf("the audit is blind without %s: install iptables and nftables", tool)
		}
	}
	return all, err
}

// Process lists the part of a snapshot that belongs to the process: namespaces that are
// mounted, processes and file descriptors.
func Process() (Lines, error) { return list(ofProcess(nil)) }

func ofProcess(dirs []string) []part {
	return []part{
		{"mounts", func() ([]string, error) { return listMounts(dirs) }},
		{"processes", Processes},
		{"file descriptors", listDescriptors},
	}
}

func list(parts []part) (all Lines, err error) {
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

// part lists one kind of things.
type part struct {
	name string
	list func() ([]string, error)
}
