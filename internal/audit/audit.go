// Package audit finds leaks. It renders everything that a container's
// attachment can leave behind, in the kernel, on disk and in this process, as
// sorted lines of text. Equal snapshots mean that nothing leaked. Otherwise
// their difference is the report.
//
//	link veth12ab type veth master cni0 mtu 1500 up
//	addr cni0 type bridge 10.1.0.1/24
//	route 10.1.0.0/24 dev cni0 type bridge proto kernel scope link src 10.1.0.1
//	rule inet 100 from 10.1.0.2/32 table 100
//	neigh veth12ab 10.1.0.2 0a:58:0a:01:00:02
//	qdisc veth12ab tbf 1:0 parent root
//	iptables-nft nat -A POSTROUTING -s 10.1.0.2/32 -j CNI-6f8bb2e8
//	nft rule ip cni_hostport hostports tcp dport 8080 dnat to 10.1.0.2:80
//	file /var/lib/cni/networks/podnet/10.1.0.2 sha256:77c7ce9a5d86bb38
//	mount nsfs /run/netns/blue
//	netns /run/netns/blue 4:4026532301
//	process sleep: sleep 60
//	fd socket
//	missing nft
//	unreadable /var/lib/cni/embedcni
//
// Two snapshots of an idle namespace are equal. The lines therefore omit
// everything that changes by itself: counters, indices, timers, the state of
// duplicate address detection, the link-local addresses and multicast routes
// that the kernel adds when an interface comes up, and the entries of the local
// table that it adds for addresses. They also omit built-in chains with the
// policy ACCEPT, which reading a table can create. A line "missing" names a
// tool without which the snapshot is incomplete, and a line "unreadable" a file or a
// directory that this user may not read.
package audit

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrNotSupported is returned on systems other than Linux. It is an
// [errors.ErrUnsupported].
var ErrNotSupported = fmt.Errorf("an audit needs Linux: %w", errors.ErrUnsupported)

// Options name the places to search, besides the kernel and the process. A
// missing directory counts as empty.
type Options struct {
	// StateDirs are directories of IPAM, of results or of records. Their
	// contents are listed recursively, without the directories themselves.
	StateDirs []string
	// NetNSDirs are the directories where network namespaces are pinned.
	NetNSDirs []string
	// WithoutProcess omits mounts, processes and file descriptors, which belong
	// to neither the network namespace nor the directories.
	WithoutProcess bool
	// Complete has Snapshot fail, instead of a line, if a tool is missing.
	Complete bool
}

// Lines are the sorted lines of a snapshot. A repeated line stands for as many
// things.
type Lines []string

// Diff returns the lines that occur more often in after than in before, and
// those that occur less often.
func Diff(before, after Lines) (added, removed Lines) {
	count := make(map[string]int)
	for _, line := range after {
		count[line]++
	}
	for _, line := range before {
		count[line]--
	}
	for line, n := range count {
		for ; n > 0; n-- {
			added = append(added, line)
		}
		for ; n < 0; n++ {
			removed = append(removed, line)
		}
	}
	slices.Sort(added)
	slices.Sort(removed)
	return added, removed
}

// Without returns the lines for which pred is false.
func (l Lines) Without(pred func(string) bool) Lines {
	var kept Lines
	for _, line := range l {
		if !pred(line) {
			kept = append(kept, line)
		}
	}
	return kept
}

// IsRule reports whether a line is of a packet filter.
func IsRule(line string) bool {
	what, _, _ := strings.Cut(line, " ")
	return what == "nft" || strings.HasPrefix(what, "iptables") || strings.HasPrefix(what, "ip6tables")
}

// line joins the words that are not empty.
func line(words ...string) string {
	return strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == "" }), " ")
}
