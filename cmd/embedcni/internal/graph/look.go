package graph

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/cmd/embedcni/internal/words"
)

// Source has the calls of a *cni.Runtime that a picture is made from.
type Source interface {
	Attachments(ids ...string) ([]cni.Attachment, error)
	Lookup(id string) (*cni.Result, error)
	Health(ctx context.Context, o cni.HealthOptions) ([]cni.Health, error)
	GetConfig() *cni.ConfigResult
}

// Options say what to look at.
type Options struct {
	Name string // of the host
	// Owner is the owner whose containers are shown; empty shows those of all.
	Owner string
	// WithoutCheck asks no plugin for CHECK; see cni.HealthOptions.
	WithoutCheck bool
}

// Look makes the model of the node: from the records, whoever wrote them, from the verdicts
// on these containers, and from the networks that are loaded. It changes nothing.
func Look(ctx context.Context, from Source, o Options) (Host, error) {
	attachments, err := from.Attachments()
	if err != nil {
		return Host{}, err
	}
	if o.Owner != "" {
		attachments = slices.DeleteFunc(attachments, func(a cni.Attachment) bool { return a.Owner != o.Owner })
	}
	verdicts, err := verdictsOn(ctx, from, attachments, o.WithoutCheck)
	if err != nil {
		return Host{}, err
	}
	b := &builder{host: Host{Name: o.Name}, index: map[string]int{}, configured: map[string]place{}}
	b.addLoaded(from.GetConfig())
	for group := range containers(attachments) {
		result, err := from.Lookup(group[0].ContainerID)
		if err != nil && !errors.Is(err, cni.ErrNotAttached) {
			result = nil // its verdict says why the record cannot be used
		}
		b.addContainer(group, result, verdicts[group[0].ContainerID])
	}
	b.finish()
	return b.host, nil
}

// verdictsOn returns the verdicts on the containers of the attachments, by ID.
func verdictsOn(ctx context.Context, from Source, all []cni.Attachment, withoutCheck bool) (map[string]cni.Health, error) {
	var ids []string
	for _, a := range all {
		if a.ContainerID != "" {
			ids = append(ids, a.ContainerID)
		}
	}
	if len(ids) == 0 {
		return nil, nil
	}
	verdicts, err := from.Health(ctx, cni.HealthOptions{Containers: slices.Compact(ids), WithoutCheck: withoutCheck})
	byID := map[string]cni.Health{}
	for _, v := range verdicts {
		byID[v.ContainerID] = v
	}
	return byID, err
}

// containers yields the attachments of each container, in the order of the IDs. Those of lo
// are left out, unless a container has nothing else.
func containers(all []cni.Attachment) func(yield func([]cni.Attachment) bool) {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b cni.Attachment) int { return strings.Compare(a.ContainerID, b.ContainerID) })
	return func(yield func([]cni.Attachment) bool) {
		for len(all) > 0 {
			n := 1
			for n < len(all) && all[n].ContainerID == all[0].ContainerID {
				n++
			}
			group := slices.DeleteFunc(slices.Clone(all[:n]), func(a cni.Attachment) bool { return a.IfName == "lo" })
			if len(group) == 0 {
				group = all[:1]
			}
			if !yield(group) {
				return
			}
			all = all[n:]
		}
	}
}

type builder struct {
	host       Host
	index      map[string]int   // of the segments, by key
	configured map[string]place // by the network's name, of the loaded ones
}

// segment returns the segment for a network at a place, which it makes if need be.
func (b *builder) segment(at place, network string) *Segment {
	key := at.bridge
	if key == "" {
		key = "/" + network // no name of a bridge
	}
	i, ok := b.index[key]
	if !ok {
		i = len(b.host.Segments)
		b.index[key] = i
		b.host.Segments = append(b.host.Segments, Segment{Bridge: at.bridge, Kind: at.kind})
	}
	s := &b.host.Segments[i]
	s.Kind = cmp.Or(s.Kind, at.kind)
	add(&s.Networks, network)
	return s
}

// addLoaded adds the loaded networks, so that one without containers shows.
func (b *builder) addLoaded(c *cni.ConfigResult) {
	for _, n := range c.Networks {
		if n.IFName == "lo" || n.Config == nil {
			continue
		}
		at := placeOf(n.Config)
		b.configured[n.Config.Name] = at
		b.segment(at, n.Config.Name)
	}
}

// addContainer adds the interfaces of a container.
func (b *builder) addContainer(group []cni.Attachment, result *cni.Result, verdict cni.Health) {
	places := make([]place, len(group))
	members := make([]Member, len(group))
	for i, a := range group {
		r := resultOf(result, a)
		places[i], members[i].HostIfName = b.placeAt(a, r)
		members[i] = fill(members[i], a, r)
	}
	for i, m := range members {
		s := b.segment(places[i], group[i].Network)
		for _, addr := range group[i].Addresses {
			if places[i].kind == "bridge" && addr.Gateway.IsValid() {
				add(&s.Addresses, fmt.Sprintf("%s/%d", addr.Gateway, addr.Prefix.Bits()))
			}
		}
		for j, other := range group {
			if i != j {
				m.Elsewhere = append(m.Elsewhere, other.IfName+" on "+cmp.Or(places[j].bridge, other.Network))
			}
		}
		s.Members = append(s.Members, s.judge(m, group, i, verdict))
	}
}

// judge adds the verdict on a container to its i-th interface, and to the bridge what is
// wrong with that.
func (s *Segment) judge(m Member, group []cni.Attachment, i int, verdict cni.Health) Member {
	m.State = cmp.Or(verdict.State, cni.StateUnknown)
	found := false
	for _, d := range verdict.Differences {
		switch {
		case !concerns(d, group, i):
			continue
		case aboutBridge(d, s.Bridge):
			add(&s.Broken, lost(d))
		default:
			m.Words = append(m.Words, lost(d))
		}
		found = true
	}
	if m.broken() && !found && (i > 0 || verdict.Reason == nil) {
		m.State = cni.StateHealthy // another interface of the container is broken
	}
	if verdict.Reason != nil && !m.healthy() {
		m.Words = append(m.Words, strings.Split(verdict.Reason.Error(), "\n")...)
	}
	if failed := group[i].LastError; failed != "" {
		if group[i].State != cni.Unknown { // else it is about the record
			failed = "not removed: " + failed
		}
		m.Words = append(m.Words, strings.Split(failed, "\n")...)
	}
	return m
}

// concerns reports whether a difference is to be shown at a container's i-th attachment.
// One of an attachment that is not shown, such as lo, goes to the first.
func concerns(d cni.Difference, group []cni.Attachment, i int) bool {
	shown := slices.IndexFunc(group, func(a cni.Attachment) bool { return a.Network == d.Network && a.IfName == d.IfName })
	return i == max(shown, 0)
}

// aboutBridge reports whether a difference is one of the bridge, which all its containers
// have. The object of an address is "10.1.0.1/24 on cni0".
func aboutBridge(d cni.Difference, bridge string) bool {
	return bridge != "" && !d.Inside && (d.Object == bridge || strings.HasSuffix(d.Object, " on "+bridge))
}

// lost says what differs. Why it cannot be repaired is long, and health has it.
func lost(d cni.Difference) string {
	if d.Repairable {
		return words.Lost(d)
	}
	return words.Lost(d) + " (not repairable)"
}

// resultOf returns the part of a container's result that is an attachment's, or nil.
func resultOf(result *cni.Result, a cni.Attachment) *cni.NetworkResult {
	if result == nil {
		return nil
	}
	for _, n := range result.Networks {
		if n.Name == a.Network && n.IfName == a.IfName {
			return n
		}
	}
	return nil
}

// fill adds to a member what the record has.
func fill(m Member, a cni.Attachment, r *cni.NetworkResult) Member {
	m.ContainerID, m.Network, m.IfName, m.NetNS, m.Owner = a.ContainerID, a.Network, a.IfName, a.NetNS, a.Owner
	for _, addr := range a.Addresses {
		m.Addresses = append(m.Addresses, addr.Prefix.String())
	}
	if r != nil {
		for _, p := range r.Ports {
			m.Ports = append(m.Ports, Port{p.HostIP, p.HostPort, p.ContainerPort, cmp.Or(strings.ToLower(p.Protocol), "tcp")})
		}
	}
	slices.SortFunc(m.Ports, comparePorts)
	return m
}

// finish sorts what was added.
func (b *builder) finish() {
	b.host.Segments = noNil(b.host.Segments)
	for i := range b.host.Segments {
		s := &b.host.Segments[i]
		s.Networks, s.Addresses, s.Members = noNil(s.Networks), noNil(s.Addresses), noNil(s.Members)
		for j := range s.Members {
			s.Members[j].Addresses, s.Members[j].Ports = noNil(s.Members[j].Addresses), noNil(s.Members[j].Ports)
		}
		slices.SortStableFunc(s.Members, func(a, b Member) int {
			return cmp.Or(natural(a.ContainerID, b.ContainerID), strings.Compare(a.IfName, b.IfName))
		})
	}
	slices.SortStableFunc(b.host.Segments, func(a, b Segment) int {
		return cmp.Or(strings.Compare(a.Bridge, b.Bridge), strings.Compare(strings.Join(a.Networks, ","), strings.Join(b.Networks, ",")))
	})
}

func add(to *[]string, s string) {
	if s != "" && !slices.Contains(*to, s) {
		*to = append(*to, s)
	}
}

// noNil makes an empty list of none, for JSON.
func noNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
