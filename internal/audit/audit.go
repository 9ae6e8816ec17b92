// Package audit tells what exists: it renders everything a container's
// attachment can leave behind, in the kernel, on disk and in this process, as
// sorted lines of text. Two snapshots that are equal mean that nothing leaked;
// the difference between two that are not is the report.
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
//
// Two snapshots of an idle namespace are equal. So there is nothing in the lines that
// changes by itself: no counter, index, timer or state of detection of
// duplicate addresses, no link-local address or multicast route that the kernel
// makes when an interface comes up, no entry of the local table that it makes
// for an address. Nor are there the built-in chains with their policy ACCEPT,
// which looking at a table can bring about. A line "missing" names a tool
// without which the snapshot is blind to something.
package audit

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrNotSupported is returned off Linux. It is an [errors.ErrUnsupported].
var ErrNotSupported = fmt.Errorf("an audit needs Linux: %w", errors.ErrUnsupported)

// Options says where to look, beyond the kernel and the process. Directories
// that do not exist hold nothing.
type Options struct {
	// StateDirs are the directories whose content is listed, recursively:
	// those of IPAM, of results, of records. They are not listed themselves.
	StateDirs []string
	// NetNSDirs are the directories where network namespaces are pinned.
	NetNSDirs []string
	// WithoutProcess leaves out what is not of the network namespace nor in the
	// directories: mounts, processes, file descriptors.
	WithoutProcess bool
}

// Lines are the lines of a snapshot, sorted. A line that is there twice exists
// twice.
type Lines []string

// Diff returns the lines that after has more often than before, and those that
// it has less often.
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

// line puts words together, leaving out the empty ones.
func line(words ...string) string {
	var b strings.Builder
	for _, w := range words {
		if w == "" {
			continue
		}
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(w)
	}
	return b.String()
}
