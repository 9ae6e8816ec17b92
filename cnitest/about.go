package cnitest

import (
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/builtin/bandwidth"
	"github.com/embedcni/cni/internal/engine/leftovers"
	"github.com/embedcni/cni/internal/kernel/netfilter"
	"github.com/embedcni/cni/internal/store/record"
)

// traces are names by which a line is recognised as an attachment's. Each one is
// compared as a whole with a word, a quoted comment or a file's name.
type traces struct {
	chains, comments []string
	hostport         string       // the comment of portmap's rules in nftables
	addresses        []netip.Addr // in the rules of the plugin firewall, routes, neighbours
	links            []string
	files            []string // by name
	held             []string // host-local's, by path
}

// about returns the test for lines that are about one of o.Of.
func (o Options) about(lines audit.Lines) (func(string) bool, error) {
	if len(o.Of) == 0 {
		return func(string) bool { return true }, nil
	}
	var all []traces
	for _, a := range o.Of {
		t := a.traces()
		if err := t.hold(a, lines); err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	return func(line string) bool {
		return slices.ContainsFunc(all, func(t traces) bool { return t.in(line) })
	}, nil
}

func (a Attachment) traces() traces {
	t := traces{
		hostport: a.ContainerID, links: append([]string{bandwidth.Device(a.Network, a.ContainerID)}, a.Links...),
	}
	t.chains, t.comments = netfilter.Owner{Network: a.Network, ContainerID: a.ContainerID, IfName: a.IfName}.Names()
	for _, addr := range a.Addresses {
		t.addresses = append(t.addresses, addr.Unmap())
	}
	name := record.Name(record.ID(a.ContainerID))
	t.files = []string{
		a.Network + "-" + a.ContainerID + "-" + a.IfName, // libcni's result
		name + ".json", name, // the record, the pin
	}
	return t
}

// hold finds host-local's files of the attachment among those that are listed.
func (t *traces) hold(a Attachment, lines audit.Lines) error {
	var dirs []string
	for _, line := range lines {
		what, path := splitFile(line)
		if _, err := netip.ParseAddr(filepath.Base(path)); what != "file" || err != nil {
			continue
		}
		if dir := filepath.Dir(path); filepath.Base(dir) == a.Network && !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	for _, dir := range dirs {
		held, err := leftovers.Target{Footprint: leftovers.Footprint{
			Owner: netfilter.Owner{ContainerID: a.ContainerID, IfName: a.IfName}, IPAMDirs: []string{dir},
		}}.Held()
		if err != nil {
			return err
		}
		for _, addr := range held {
			t.held = append(t.held, filepath.Join(dir, addr.String()))
			t.addresses = append(t.addresses, addr)
		}
	}
	return nil
}

func (t traces) in(line string) bool {
	words := strings.Fields(line)
	switch what, path := splitFile(line); what {
	case "file", "symlink", "netns", "mount":
		return t.hasFile(path)
	case "link", "addr", "qdisc", "neigh", "route", "rule":
		return t.hasLink(words) || t.hasAddress(words)
	case "dir":
		return false
	}
	return t.ofRule(line, words)
}

// hasFile reports whether a file is the attachment's.
func (t traces) hasFile(path string) bool {
	return slices.Contains(t.files, filepath.Base(path)) || slices.Contains(t.held, path)
}

// hasLink looks at the places where links are, for a link may be called
// "bridge".
func (t traces) hasLink(words []string) bool {
	switch words[0] {
	case "route", "rule":
		i := slices.Index(words, "dev")
		return i > 0 && i+1 < len(words) && slices.Contains(t.links, words[i+1])
	}
	return len(words) > 1 && slices.Contains(t.links, words[1])
}

func (t traces) hasAddress(words []string) bool {
	return slices.ContainsFunc(words, func(word string) bool {
		addr, err := netip.ParseAddr(word)
		if prefix, perr := netip.ParsePrefix(word); perr == nil && prefix.IsSingleIP() {
			addr, err = prefix.Addr(), nil
		}
		return err == nil && slices.Contains(t.addresses, addr)
	})
}

// ofRule looks at a chain or rule of a packet filter. An address makes a rule
// the container's only where the plugin firewall writes; elsewhere it may be an
// administrator's.
func (t traces) ofRule(line string, words []string) bool {
	if slices.ContainsFunc(t.chains, func(chain string) bool { return slices.Contains(words, chain) }) {
		return true
	}
	if slices.ContainsFunc(t.comments, func(c string) bool { return strings.Contains(line, `comment "`+c+`"`) }) {
		return true
	}
	if slices.Contains(words, "cni_hostport") && strings.HasSuffix(line, `comment "`+t.hostport+`"`) {
		return true
	}
	return slices.Contains(words, "CNI-FORWARD") && t.hasAddress(words)
}
