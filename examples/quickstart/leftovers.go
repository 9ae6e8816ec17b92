package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/embedcni/cni/internal/audit"
)

const (
	stateDir = "/run/quickstart" // the library's: results, locks
	netnsDir = "/run/netns"
)

// snapshot lists everything on the host: links, addresses, routes, packet
// filters, files, mounts, processes, descriptors.
func snapshot(ctx context.Context) (audit.Lines, error) {
	// These directories belong to the host, whatever the containers put below
	// them.
	for _, dir := range []string{stateDir, netnsDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	// Both directories are empty in a new sandbox, and plugins, iptables and
	// the library write nowhere else.
	return audit.Snapshot(ctx, audit.Options{StateDirs: []string{"/run", "/var/lib"}, NetNSDirs: []string{netnsDir}})
}

// printLeftovers prints the differences from before. Leftovers of the
// containers are an error. The parts kept for the next container are not: the
// bridge, the shared chains, IPAM's directories and locks.
func printLeftovers(ctx context.Context, out io.Writer, before audit.Lines, verbose bool) error {
	added, gone, err := settled(ctx, before)
	if err != nil {
		return err
	}
	left, kept := added.Without(isKept), added.Without(func(line string) bool { return !isKept(line) })

	fmt.Fprintf(out, "\nkept for the next container (-v lists it):\n")
	if !verbose {
		kept = audit.Lines{summary(kept)}
	}
	printLines(out, kept)
	if len(left)+len(gone) == 0 {
		fmt.Fprintln(out, "left of the containers: nothing")
		return nil
	}
	fmt.Fprintln(out, "left of the containers:")
	printLines(out, left)
	if len(gone) > 0 {
		fmt.Fprintln(out, "gone with them, though it was there before:")
		printLines(out, gone)
	}
	return errors.New("the containers did not leave the host as it was")
}

// settled returns the differences from before, after the library has closed its
// packet filter sockets. It keeps them open for a tenth of a second.
func settled(ctx context.Context, before audit.Lines) (added, gone audit.Lines, err error) {
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		after, err := snapshot(ctx)
		if err != nil {
			return nil, nil, err
		}
		added, gone = audit.Diff(before, after)
		open := slices.ContainsFunc(added, func(line string) bool { return strings.HasPrefix(line, "fd ") })
		if !open || time.Now().After(end) {
			return added, gone, nil
		}
	}
}

// isKept reports whether a line of the audit belongs to no container: shared
// objects of the reference plugins, the library's locks, and its list of
// networks that have had their first container.
func isKept(line string) bool {
	return audit.Shared(line) || strings.Contains(line, " "+stateDir+"/embedcni/")
}

// summary counts lines by their first word: "1 link, 2 route".
func summary(lines audit.Lines) string {
	if len(lines) == 0 {
		return "nothing"
	}
	count := map[string]int{}
	for _, line := range lines {
		what, _, _ := strings.Cut(line, " ")
		count[what]++
	}
	var parts []string
	for _, what := range slices.Sorted(maps.Keys(count)) {
		parts = append(parts, fmt.Sprintf("%d %s", count[what], what))
	}
	return strings.Join(parts, ", ")
}

func printLines(out io.Writer, lines audit.Lines) {
	for _, line := range lines {
		fmt.Fprintf(out, "    %s\n", line)
	}
}
