package leftovers

import (
	"net/netip"
	"slices"
	"time"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/netfilter"
	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/internal/store/record"
)

// Others finds addresses and devices of other attachments in the records. Each method
// reads all records, one after the other: there may be ten thousand. A nil Others has none.
type Others struct {
	Records interface {
		Each(found func(record.Found) (more bool)) error
	}
	CacheDir string // of libcni's cache, which has addresses of records that cannot be used

	// The attachment. Plugins is the container's ID for plugins: a container that was
	// made ahead of time can still be on record under that ID.
	ContainerID record.ID
	Plugins     record.PluginID
	IfName      string
	Host, Boot  string          // where and when its plugins run
	Leaving     map[string]bool // interfaces of the container that are removed too
}

// isOther reports whether a container ID is another container's.
func (o *Others) isOther(id record.ID) bool {
	return id != o.ContainerID && record.PluginID(id) != o.Plugins
}

// InUse returns the addresses of other containers.
func (o *Others) InUse() ([]netip.Addr, error) {
	return o.inUse(func(*record.Attachment) bool { return true })
}

// InZones returns the addresses of other containers that may be in a zone of
// firewalld.
func (o *Others) InZones() ([]netip.Addr, error) { return o.inUse(maybeZoned) }

func (o *Others) inUse(counts func(*record.Attachment) bool) (all []netip.Addr, err error) {
	_, whole, err := o.each(func(rec *record.Record, n *record.Attachment) bool {
		if rec.ContainerID != o.ContainerID && counts(n) {
			all = append(all, Addresses(n.Result)...)
		}
		return false // all of them
	})
	if err != nil || whole {
		return all, err
	}
	cached, err := o.cached()
	return append(all, cached...), err
}

// cached returns the addresses of other containers in libcni's cache.
func (o *Others) cached() (all []netip.Addr, err error) {
	cached, err := chain.AllCached(o.CacheDir, "")
	if err != nil {
		return nil, err
	}
	for _, c := range cached {
		if !o.isOther(record.ID(c.ContainerID)) {
			continue
		}
		in := chain.CachedAs(o.CacheDir, c.Network, c.ContainerID, c.IfName)
		all = append(all, Addresses([]byte(in.Result()))...)
	}
	return all, nil
}

// HaveShaper reports whether another attachment has made a device of bandwidth's,
// known by name and hardware address, or may have. Attachments that are removed
// together do not count.
func (o *Others) HaveShaper(name, mac string) (bool, error) {
	return o.any(func(rec *record.Record, n *record.Attachment) bool {
		going := rec.ContainerID == o.ContainerID && o.Leaving[n.IfName]
		return !going && mayHaveShaped(string(rec.Plugins()), *n, name, mac)
	})
}

// HaveDevice reports whether another attachment has a device.
func (o *Others) HaveDevice(d *Device) (bool, error) {
	return o.any(func(_ *record.Record, n *record.Attachment) bool {
		other := DecodeDevice(n.Facts[DeviceFact])
		return other != nil && !other.Settled && other.Same(d)
	})
}

// InNetwork reports whether another attachment needs the host to forward the packets of a
// subnet: it has noted that, or it is attached there by a chain with the plugin firewall,
// whoever made its rules. An ADD under way notes it first. One that is being removed does
// not count: of several that leave at once, the last to note that takes the rules along.
// A record that cannot be used may be of a live container that needs it.
func (o *Others) InNetwork(subnet netip.Prefix) (yes bool, err error) {
	found, whole, eachErr := o.each(func(rec *record.Record, n *record.Attachment) bool {
		if rec.Host != o.Host || rec.Boot != o.Boot || n.State == record.Deleting {
			return false
		}
		subnets, readErr := netfilter.NotedSubnets(n.Facts[netfilter.SubnetsFact], false)
		err = joined.Errors(err, readErr)
		if n.State == record.Added && maybeForwarded(n) {
			subnets = append(subnets, netfilter.Subnets(contract.PrefixesOf(chain.Decode(n.Result)))...)
		}
		return slices.Contains(subnets, subnet)
	})
	return found || !whole, joined.Errors(err, eachErr)
}

// maybeForwarded reports whether a recorded attachment may have the rules of the plugin
// firewall.
func maybeForwarded(n *record.Attachment) bool {
	p, known := Ran{Plugins: n.Plugins}.Plugin(conflist.Firewall)
	return !known || p.Type != "" && p.Kind != record.KindRegistered // an earlier version's names none
}

// Notes returns the notes under a key of attachments, this one excepted, whose plugins ran
// in the same host namespace since the same boot, with those of the newest record last.
// What is being removed does not count.
func (o *Others) Notes(key string) (all []contract.Noted, err error) {
	type dated struct {
		contract.Noted
		since time.Time
	}
	var found []dated
	_, err = o.any(func(rec *record.Record, n *record.Attachment) bool {
		if rec.Host == o.Host && rec.Boot == o.Boot && n.Facts[key] != nil && n.State == record.Added {
			found = append(found, dated{contract.Noted{Value: n.Facts[key], Result: n.Result}, rec.Since})
		}
		return false // all of them
	})
	slices.SortStableFunc(found, func(a, b dated) int { return a.since.Compare(b.since) })
	for _, d := range found {
		all = append(all, d.Noted)
	}
	return all, err
}

// any reports whether is returns true for another attachment.
func (o *Others) any(is func(*record.Record, *record.Attachment) bool) (bool, error) {
	yes, _, err := o.each(is)
	return yes, err
}

// each calls fn for each attachment but this one, those of the container included, until it
// returns true. whole reports whether all records could be used.
func (o *Others) each(fn func(*record.Record, *record.Attachment) bool) (stopped, whole bool, err error) {
	whole = true
	if o == nil {
		return false, whole, nil
	}
	err = o.Records.Each(func(f record.Found) bool {
		own := f.Record.ContainerID == o.ContainerID
		whole = whole && (own || f.Err == nil)
		if !own && !o.isOther(f.Record.ContainerID) {
			return true // this container, made ahead of time
		}
		stopped = f.Record.Has(func(n *record.Attachment) bool { return !(own && n.IfName == o.IfName) && fn(f.Record, n) })
		return !stopped
	})
	return stopped, whole, err
}
