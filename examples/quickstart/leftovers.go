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

// snapshot lists everything there is on the host now: links, addresses, routes,
// packet filters, files, mounts, processes, descriptors.
func snapshot(ctx context.Context) (audit.Lines, error) {
	// These are the host's, whatever the containers bring about below them.
	for _, dir := range []string{stateDir, netnsDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	// In the sandbox these two are empty at first, and all that plugins,
	// iptables and the library write goes there.
	return audit.Snapshot(ctx, audit.Options{StateDirs: []string{"/run", "/var/lib"}, NetNSDirs: []string{netnsDir}})
}

// printLeftovers prints what has come to be since before: what is left of the
// containers, which is an error, and what is kept for the next one, which is
// not: the bridge, the chains that all containers' rules hang from, the
// directories and locks of IPAM.
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

// settled returns what has come and gone since before, when the library has
// closed the sockets to the packet filters that it keeps for a tenth of a second.
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

// isKept tells whether a line of the audit is for something that does not go
// with a container: what the reference plugins share, and the library's locks
// and its memory of which networks have had their first container.
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
