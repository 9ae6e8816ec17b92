// Package handover decides whether go-cni v1.1.14 could remove a container that
// this module attached.
//
// Remove of go-cni runs DEL for each network that it has loaded: in the caller's
// network namespace, with the caller's ID, path and options and the result in
// libcni's cache, by the executables in the plugin directories. It stops at the first
// error and does not read records. The checks find containers that it could not
// remove. Nothing is changed.
package handover

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/conflist"
	"github.com/embedcni/cni/internal/footprint"
	"github.com/embedcni/cni/internal/invoke"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/record"
)

var (
	// ErrElsewhere means that the plugins ran in another network namespace.
	ErrElsewhere = errors.New("host network namespace out of reach")
	// ErrNotLoaded means that a network is not loaded.
	ErrNotLoaded = errors.New("not found")
)

// Record returns nil if go-cni could remove a container as its record describes it.
// owner is the caller's, and host the network namespace from which go-cni is called.
func Record(rec *record.Record, owner, boot, host string) error {
	attached := slices.DeleteFunc(slices.Clone(rec.Attachments), func(n record.Attachment) bool { return n.State == record.Deleted })
	switch {
	case rec.Warm:
		return errors.New("a pool made it ahead of time, and it is no container yet; close the pool, or call Recover if its process is dead")
	case rec.NetNS.Ours:
		return errors.New("its network namespace was made for it, and go-cni would not delete that; Remove it")
	case rec.PluginID != "":
		return errors.New("a pool made it, under an ID that go-cni does not know; Remove it")
	case rec.HasUnknown():
		return errors.New("a newer version has added to its record; call its Release, or Remove the container")
	case slices.ContainsFunc(attached, func(n record.Attachment) bool { return rec.OwnerOf(&n) != owner }):
		return errors.New("another owner has attached it too; Remove that owner's attachments first")
	case len(attached) == 0:
		return errors.New("nothing of it is attached; Remove it")
	case rec.Boot != boot:
		return errors.New("it ended when the host was rebooted; call Recover, or Remove it")
	case rec.Host != "" && rec.Host != host:
		where := rec.Host
		if rec.HostPath != "" {
			where += " (" + rec.HostPath + ")"
		}
		return fmt.Errorf("its plugins ran in network namespace %s, and go-cni called from here would run them in %s; "+
			"call Release, and go-cni, from there: %w", where, host, ErrElsewhere)
	}
	return nil
}

// SameOptions returns an error if two networks of the container were given different
// options. go-cni gives all networks the same.
func SameOptions(networks []record.Attachment) error {
	var first *record.Attachment
	for i := range networks {
		n := &networks[i]
		switch {
		case n.State == record.Deleted:
		case first == nil:
			first = n
		case !reflect.DeepEqual(first.Args, n.Args) || !sameJSON(first.Capabilities, n.Capabilities):
			return fmt.Errorf("network %q was given other arguments or capabilities than %q, and go-cni gives all of them the same; Remove it",
				n.Network, first.Network)
		}
	}
	return nil
}

// sameJSON reports whether two values are equal in JSON, regardless of the order of
// keys and of white space.
func sameJSON(a, b any) bool {
	var values [2]any
	for i, v := range []any{a, b} {
		data, err := json.Marshal(v)
		if err != nil || json.Unmarshal(data, &values[i]) != nil {
			return false
		}
	}
	return reflect.DeepEqual(values[0], values[1])
}

// Whole returns nil if an attachment is complete, and no removal has begun.
func Whole(n *record.Attachment) error {
	switch {
	case n.State == record.Planned:
		return errors.New("it is attached in part; call Recover, or Remove the container")
	case n.State != record.Added || n.Failures > 0:
		return fmt.Errorf("a removal has begun (%d failures, the last: %s); Remove the container", n.Failures, cmp.Or(n.LastError, "none"))
	}
	return nil
}

// Network is a network that go-cni has loaded.
type Network struct {
	List   *libcni.NetworkConfigList
	IfName string
}

// GoCNI is go-cni as it would be called next.
type GoCNI struct {
	Networks   []Network
	PluginDirs []string
	// CacheDir is where the results are. go-cni has no option for it and uses
	// libcni's default, which Reads reports to be the same directory.
	CacheDir string
	Reads    bool
	Host     Host
}

// Loaded returns nil if go-cni would find all executables of the loaded networks.
// go-cni runs the DELs of all loaded networks, whether or not the container is
// attached to them, and stops at the first that fails.
func (g *GoCNI) Loaded() error {
	for _, n := range g.Networks {
		for _, typ := range types(n.List) {
			if _, err := invoke.FindByLibcni(typ, g.PluginDirs); err != nil {
				return fmt.Errorf("go-cni asks network %q too: %w; install it, or Remove the container", n.List.Name, err)
			}
		}
	}
	return nil
}

// types returns the plugin types of a chain.
func types(list *libcni.NetworkConfigList) (all []string) {
	for _, p := range list.Plugins {
		for _, typ := range []string{p.Network.Type, p.Network.IPAM.Type} {
			if typ != "" && !slices.Contains(all, typ) {
				all = append(all, typ)
			}
		}
	}
	return all
}

// sameConfiguration returns nil if the attachment's network is loaded under the same
// interface name, with the configuration that the attachment was made with.
func (g *GoCNI) sameConfiguration(a *footprint.Attachment) error {
	for _, n := range g.Networks {
		if n.List.Name != a.List.Name || n.IfName != a.IfName {
			continue
		}
		recorded, rerr := conflist.Whole(a.List)
		loaded, err := conflist.Whole(n.List)
		if err = errors.Join(rerr, err); err != nil || sameJSON(recorded, loaded) {
			return err
		}
		return errors.New("it is loaded with another configuration than it was attached with; load that one, or Remove the container")
	}
	return fmt.Errorf("it is not loaded under that interface name, and go-cni removes what it has loaded; load it, or Remove the container: %w", ErrNotLoaded)
}

// cached returns nil if go-cni would find the result of the ADD in libcni's cache, or
// does not need it.
func (g *GoCNI) cached(a *footprint.Attachment) error {
	if slices.Equal(types(a.List), []string{known.Loopback}) {
		return nil // sets lo down, whatever the result is
	}
	err := chain.Cached{Dir: libcni.CacheDir, List: a.List, Attachment: &a.Attachment}.Has(a.Result)
	if errors.Is(err, chain.ErrNotCached) && !g.Reads {
		return fmt.Errorf("%w; go-cni looks there: make %s a link to %s, or Remove the container", err, libcni.CacheDir, g.CacheDir)
	}
	if err != nil {
		return fmt.Errorf("%w; Remove the container", err)
	}
	return nil
}

// installed returns nil if go-cni would find the executable of a type, and that
// executable is the plugin that attached the container or interchangeable with it.
func (g *GoCNI) installed(a *footprint.Attachment, typ string) error {
	if a.IsCallers(typ) {
		return fmt.Errorf("plugin %q is the program's own, registered with WithPlugin; Remove the container", typ)
	}
	if len(a.ConfigArgs) > 0 && !known.Of(typ).BareDEL {
		return fmt.Errorf("plugin %q was given args by WithConfigArgs, for which go-cni has no option; Remove the container", typ)
	}
	if _, err := invoke.FindByLibcni(typ, g.PluginDirs); err != nil {
		return fmt.Errorf("%w; install it, or Remove the container", err)
	}
	return nil
}
