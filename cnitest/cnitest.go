package cnitest

import (
	"context"
	"slices"
	"strings"

	"github.com/embedcni/cni/internal/audit"
)

// Options name the directories that Audit lists. The zero value is for a host with the usual
// ones.
type Options struct {
	// StateDirs hold the files of IPAM, results and records. The default is
	// /var/lib/cni. Directories that do not exist hold nothing.
	StateDirs []string
	// NetNSDirs are where network namespaces are pinned. The default is
	// /run/netns.
	NetNSDirs []string
}

// Audit lists the state of the calling thread's network namespace and the directories
// of o: links, addresses, routes, policy rules, neighbours,
// queueing disciplines, the rules and chains of iptables, ip6tables (of both
// variants) and nftables, files with a checksum of their content, mounts,
// pinned namespaces. One line for each, sorted; nothing in them changes by
// itself, so that two audits of an idle host are equal. It omits objects that
// the first container makes and the last one leaves: bridges, shared chains, locks.
//
// A line "missing" names a tool that Audit would need to see everything, and a line
// "unreadable" a file or directory that this user may not read.
func Audit(ctx context.Context, o Options) ([]string, error) {
	if o.StateDirs == nil {
		o.StateDirs = []string{"/var/lib/cni"}
	}
	if o.NetNSDirs == nil {
		o.NetNSDirs = []string{"/run/netns"}
	}
	lines, err := audit.Snapshot(ctx, audit.Options{StateDirs: o.StateDirs, NetNSDirs: o.NetNSDirs})
	if err != nil {
		return nil, err
	}
	return lines.Without(func(line string) bool {
		what, _, _ := strings.Cut(line, " ")
		return what == "process" || what == "fd" || shared(line)
	}), nil
}

// Diff returns the lines that only after has, behind "+ ", and those that only before
// has, behind "- "; nothing if they are equal.
func Diff(before, after []string) string {
	added, removed := audit.Diff(before, after)
	var b strings.Builder
	for _, part := range []struct {
		sign  string
		lines []string
	}{{"+ ", added}, {"- ", removed}} {
		for _, line := range part.lines {
			b.WriteString(part.sign + line + "\n")
		}
	}
	return b.String()
}

// shared reports whether a line is about an object that stays after the last container.
func shared(line string) bool {
	if audit.Shared(line) {
		return true
	}
	// The library's own: its directories, the lock file and that of lives, the subnets
	// that are reserved.
	what, path := splitFile(line)
	elements := strings.Split(path, "/")
	i := slices.Index(elements, "embedcni")
	if i < 0 || i+1 == len(elements) {
		return false
	}
	return what == "dir" || what == "file" && slices.Contains([]string{"locks", "alive", "subnets"}, elements[i+1])
}

// splitFile splits a line about a file into its kind and path.
func splitFile(line string) (what, path string) {
	what, path, _ = strings.Cut(line, " ")
	switch what {
	case "file":
		path, _, _ = cutLast(path, " sha256:")
		path, _, _ = cutLast(path, " netns ")
	case "netns":
		path, _, _ = cutLast(path, " ")
	case "mount":
		_, path, _ = strings.Cut(path, " ")
	}
	return what, path
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}
