package netconf

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/plainfile"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/internal/store/lock"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/netns"
)

// ErrNoFreeSubnet: every subnet of the pools overlaps something.
var ErrNoFreeSubnet = errors.New("no free subnet")

// Dir keeps configurations in a directory. Its methods may be called by several
// goroutines and processes at once.
type Dir struct {
	// Path is the configuration directory. It is made if it does not exist.
	Path string
	// StateDir and RecordDir are those of the runtimes on this host: see cni.WithStateDir
	// and cni.WithRecordDir. Empty are their defaults. The reservations of subnets are
	// below StateDir.
	StateDir, RecordDir string
	// HostNetNS is the path of the namespace in which plugins run; empty is the calling
	// thread's.
	HostNetNS string

	chosen func() // called by tests after a reservation
}

// Written is the outcome of a Write.
type Written struct {
	Path string
	// Changed reports whether the file was written.
	Changed bool
	// Network has the subnets that were chosen.
	Network Network
}

// Write writes a network's configuration into a file of the directory, whose name ends in
// ".conflist". The file is replaced at once, has the mode 0644, and is not touched if it
// has that content.
//
// Write finds a subnet for each range with Pools: one that overlaps no address of the
// host, no destination of a route in any table, no other configuration in the directory,
// no network of a container on record and no subnet that is reserved. Default routes and
// other routes to the whole internet do not count. The subnet follows from the directory
// and the network's name, unless it is in use: hosts that are set up alike have the same,
// and two programs that know nothing of each other hardly ever. It is reserved on disk
// before the file is written, and stays the network's, whatever happens to the file, until
// Remove. [ErrNoFreeSubnet] if there is none; [ErrInvalid] if the reserved one is not of the
// Pools and Bits any more, or if there is no reservation, and the network's bridge exists
// with an address that is not in the subnet which follows from the name.
//
// Programs with the same StateDir exclude each other while a subnet is found. Another
// program may use the same subnet later.
func (d Dir) Write(ctx context.Context, file string, n Network) (Written, error) {
	w, err := d.write(ctx, file, n)
	if err != nil {
		return Written{}, fmt.Errorf("write the configuration of network %q: %w", n.Name, err)
	}
	return w, nil
}

func (d Dir) write(ctx context.Context, file string, n Network) (w Written, err error) {
	if err := joined.Errors(validateFile(file), n.validate()); err != nil {
		return w, err
	}
	if err := os.MkdirAll(d.Path, 0o755); err != nil {
		return w, err
	}
	held, err := d.lock(ctx)
	if err != nil {
		return w, err
	}
	defer func() { err = joined.Errors(err, held.Release()) }()
	if n, err = d.choose(n); err != nil {
		return w, err
	}
	data, err := n.Render()
	if err != nil {
		return w, err
	}
	if d.chosen != nil {
		d.chosen()
	}
	w = Written{Path: filepath.Join(d.Path, file), Network: n}
	w.Changed = !plainfile.Has(w.Path, data, 0o644)
	return w, plainfile.Replace(w.Path, data, 0o644)
}

// Remove deletes a network's file from the directory, and releases its subnets. It returns
// nil if there is neither. Containers that are attached keep their network; its addresses
// are in use for Write as long as they are on record.
func (d Dir) Remove(ctx context.Context, file, network string) (err error) {
	fail := func(err error) error { return fmt.Errorf("remove the configuration of network %q: %w", network, err) }
	if err := validateFile(file); err != nil {
		return fail(err)
	}
	held, err := d.lock(ctx)
	if err != nil {
		return fail(err)
	}
	defer func() { err = joined.Errors(err, held.Release()) }()
	if err := os.Remove(filepath.Join(d.Path, file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fail(err)
	}
	if err := d.reservations().Delete(d.Path, network); err != nil {
		return fail(err)
	}
	return nil
}

// lock excludes other programs, and resolves the path of the directory if it exists.
func (d *Dir) lock(ctx context.Context) (*lock.Held, error) {
	if resolved, err := filepath.EvalSymlinks(d.Path); err == nil {
		d.Path = resolved
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	path, err := filepath.Abs(d.Path)
	if err != nil {
		return nil, err
	}
	d.Path = path
	return lock.Open(filepath.Join(d.own(), "locks")).Lock(ctx, "network configurations")
}

// validateFile checks a file's name. Runtimes load other extensions in another form, and
// no hidden file.
func validateFile(name string) error {
	if name != filepath.Base(name) || strings.HasPrefix(name, ".") || filepath.Ext(name) != ".conflist" {
		return fmt.Errorf("%w: file %q: it must be a name without a directory that ends in .conflist", ErrInvalid, name)
	}
	return nil
}

// own is the directory of the runtimes' own state.
func (d Dir) own() string { return filepath.Join(cmp.Or(d.StateDir, conflist.StateDir), "embedcni") }

func (d Dir) reservations() reservations { return reservations{Dir: filepath.Join(d.own(), "subnets")} }

// choose returns the network with a subnet for each range that asks for one.
func (d Dir) choose(n Network) (Network, error) {
	n, wanting := n.wanting()
	if len(wanting) == 0 {
		return n, nil
	}
	store := d.reservations()
	reserved, err := store.Load(d.Path, n.Name)
	if err != nil {
		return n, err
	}
	fresh, changed := len(reserved.V4)+len(reserved.V6) == 0, false
	given := n.given()
	var used, bridged []netip.Prefix // read once they are needed
	for _, r := range wanting {
		of := reserved.Of(r)
		if r.nth < len(*of) {
			if r.Subnet = (*of)[r.nth]; !r.allows(r.Subnet) {
				return n, fmt.Errorf("%w: subnet %s is reserved for it, which is not of length %d in %v: Remove the network first",
					ErrInvalid, r.Subnet, r.Bits, r.Pools)
			}
			continue
		}
		if used == nil {
			if used, bridged, err = d.used(n, fresh); err != nil {
				return n, err
			}
		}
		p, ok := chooseSubnet(fmt.Sprintf("%s %s %d", d.Path, n.Name, r.nth), *r.Range, slices.Concat(used, reserved.V4, reserved.V6))
		if !ok {
			return n, fmt.Errorf("%w of length %d in %v: all overlap addresses, routes, other networks or reservations", ErrNoFreeSubnet, r.Bits, r.Pools)
		}
		r.Subnet, *of, changed = p, append(*of, p), true
	}
	if !changed {
		return n, nil
	}
	for _, p := range bridged {
		if its := *reserved.family(p); fresh && len(its) > 0 && !slices.Contains(its, p) && !slices.ContainsFunc(given, p.Overlaps) {
			return n, fmt.Errorf("%w: bridge %s exists with an address in %s, and %v would be chosen: remove the bridge, name another, or set the Subnet",
				ErrInvalid, n.bridge(), p, its)
		}
	}
	return n, store.Save(reserved)
}

// wanting is a range that asks for a subnet: the nth of its family in the network.
type wanting struct {
	*Range
	nth int
}

// wanting returns a copy of the network, and its ranges that ask for a subnet, in their order.
func (n Network) wanting() (Network, []wanting) {
	var all []wanting
	count := map[bool]int{}
	n.Plugins = slices.Clone(n.Plugins)
	for i, p := range n.Plugins {
		local, ok := ipamOf(p).(HostLocal)
		if !ok {
			continue
		}
		local.Ranges = slices.Clone(local.Ranges)
		for at := range local.Ranges {
			r := &local.Ranges[at]
			if is4 := r.family().Is4(); !r.Subnet.IsValid() && len(r.Pools) > 0 {
				all = append(all, wanting{r, count[is4]})
				count[is4]++
			}
		}
		switch p := p.(type) { // it shares the copy
		case Bridge:
			p.IPAM = local
			n.Plugins[i] = p
		case PTP:
			p.IPAM = local
			n.Plugins[i] = p
		}
	}
	return n, all
}

// ipamOf returns the IPAM of a plugin; nil if it has none.
func ipamOf(p Plugin) IPAM {
	switch p := p.(type) {
	case Bridge:
		return p.IPAM
	case PTP:
		return p.IPAM
	}
	return nil
}

// used returns everything that a new subnet must not overlap, and the networks of the
// addresses of the network's bridge. A fresh network may have these.
func (d Dir) used(n Network, fresh bool) (used, bridged []netip.Prefix, err error) {
	open := netns.Current
	if d.HostNetNS != "" {
		open = func() (*netns.Handle, error) { return netns.Open(d.HostNetNS) }
	}
	host, err := open()
	if err != nil {
		return nil, nil, err
	}
	onHost, bridged, err := subnetsInUse(host, n.bridge())
	if err = joined.Errors(err, host.Close()); err != nil {
		return nil, nil, err
	}
	if fresh {
		onHost = slices.DeleteFunc(onHost, func(p netip.Prefix) bool { return slices.Contains(bridged, p) })
	}
	others, err := d.others(n)
	if err != nil {
		return nil, nil, err
	}
	attached, err := attachedNetworks(record.Open(d.records()))
	if err != nil {
		return nil, nil, err
	}
	return mergePrefixes(onHost, others, attached, n.given()), bridged, nil
}

// bridge returns the name of the network's bridge; "" if it has none.
func (n Network) bridge() string {
	for _, p := range n.Plugins {
		if b, ok := p.(Bridge); ok {
			return b.Name
		}
	}
	return ""
}

// records is the directory of the records of attachments.
func (d Dir) records() string { return cmp.Or(d.RecordDir, filepath.Join(d.own(), "attachments")) }

// given returns the subnets that the network has without being asked for one.
func (n Network) given() (all []netip.Prefix) {
	for _, p := range n.Plugins {
		if raw, ok := p.(Raw); ok {
			all = append(all, scanPrefixes(raw)...)
		}
		switch ipam := ipamOf(p).(type) {
		case HostLocal:
			for _, r := range ipam.Ranges {
				all = append(all, r.Subnet)
			}
		case RawIPAM:
			all = append(all, scanPrefixes(ipam)...)
		}
	}
	return all
}

// validate returns what is wrong with the network, whatever subnets it gets.
func (n Network) validate() error {
	n, wanting := n.wanting()
	given := mergePrefixes(n.given())
	for _, r := range wanting {
		for _, pool := range r.Pools {
			if !pool.IsValid() || pool != pool.Masked() || pool.Addr().Is4In6() || pool.Addr().Is4() != r.family().Is4() {
				return fmt.Errorf("network %q: %w: pool %s is no network, or of another family than the first", n.Name, ErrInvalid, pool)
			}
			if r.Bits < pool.Bits() || r.Bits > pool.Addr().BitLen()-2 {
				return fmt.Errorf("network %q: %w: Bits is %d: a subnet of pool %s has %d to %d", n.Name, ErrInvalid,
					r.Bits, pool, pool.Bits(), pool.Addr().BitLen()-2)
			}
		}
		var ok bool
		if r.Subnet, ok = chooseSubnet("", *r.Range, given); !ok {
			return fmt.Errorf("network %q: %w of length %d in %v beside its other ranges", n.Name, ErrNoFreeSubnet, r.Bits, r.Pools)
		}
		given = append(given, r.Subnet)
		// These have to fit the subnet that is chosen.
		r.Gateway, r.First, r.Last = netip.Addr{}, netip.Addr{}, netip.Addr{}
	}
	_, err := n.Render()
	return err
}

// others returns the subnets in the directory's configurations of other networks, and those
// that are reserved for them. A file that is not valid, such as one that is being written,
// may become so, so its subnets are another network's.
func (d Dir) others(n Network) (all []netip.Prefix, err error) {
	paths, err := conflist.Files(d.Path)
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		data, err := plainfile.Read(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: its subnets are unknown: %w", path, err)
		}
		if list, err := conflist.ParseAny(data); err != nil || list.Name != n.Name {
			all = append(all, scanPrefixes(data)...)
		}
	}
	reserved, err := d.reservations().Others(d.Path, n.Name)
	return append(all, reserved...), err
}
