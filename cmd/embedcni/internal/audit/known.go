package audit

import (
	"cmp"
	"context"
	"crypto/sha512"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/netns"
)

// index is what is known of containers.
type index struct {
	recorded   map[string]bool       // by ID
	addresses  map[netip.Addr]string // containers on record, by address
	interfaces map[string]bool       // of the host, that results on record name
	bridges    map[string]bool       // that results or configurations name
	hashed     map[string]string     // containers, by names that are made of their IDs
	reserved   map[netip.Addr]string // containers on no record, by an address that is reserved for them
	namespaces map[string]bool       // the paths given to Setup
	strays     []netns.Entry         // namespaces that the library keeps for no container
	cached     map[string]cachedResult
	dataDirs   map[string]bool // of host-local
	keptDirs   map[string]bool // of flannel
}

func newIndex() index {
	return index{
		recorded: map[string]bool{}, addresses: map[netip.Addr]string{}, interfaces: map[string]bool{}, bridges: map[string]bool{},
		hashed: map[string]string{}, reserved: map[netip.Addr]string{}, namespaces: map[string]bool{}, cached: map[string]cachedResult{},
		dataDirs: map[string]bool{"/var/lib/cni/networks": true}, keptDirs: map[string]bool{"/var/lib/cni/flannel": true}, // the defaults
	}
}

// hashedNames are the names that the reference plugins make of a container's network and ID:
// of the chains of bridge and ptp, and of portmap, and of bandwidth's device. They are a
// prefix and a checksum, cut to a length (containernetworking/plugins, pkg/utils).
func hashedNames(network, id string) (all []string) {
	sum := fmt.Sprintf("%x", sha512.Sum512([]byte(network+id)))
	for prefix, length := range map[string]int{"CNI-": 28, "CNI-DN-": 28, "CNI-SN-": 28, "bwp": 15} {
		all = append(all, (prefix + sum)[:length])
	}
	slices.Sort(all)
	return all
}

// hash notes which container the hashed names are of.
func (i index) hash(network, id string) {
	for _, name := range hashedNames(network, id) {
		i.hashed[name] = id
	}
}

// readRecords takes in the records of a Runtime. If they are the owner's, those of
// containers that are gone are findings.
func (a *auditor) readRecords(ctx context.Context, rt *cni.Runtime, own bool) error {
	all, err := rt.Attachments()
	if err != nil {
		return err
	}
	var ids []string
	for _, at := range all {
		if at.ContainerID != "" && !a.recorded[at.ContainerID] {
			ids = append(ids, at.ContainerID)
			a.readResult(rt, at.ContainerID)
		}
		a.takeIn(at)
	}
	a.readConfig(rt.GetConfig())
	a.namespaceFiles(rt.GetConfig().RecordDir)
	if !own || len(ids) == 0 {
		return nil
	}
	verdicts, err := rt.Health(ctx, cni.HealthOptions{Containers: ids, WithoutCheck: true})
	if err != nil {
		return err
	}
	for _, v := range verdicts {
		a.judge(v, all)
	}
	return nil
}

// takeIn notes what an attachment on record has.
func (a *auditor) takeIn(at cni.Attachment) {
	if at.ContainerID == "" {
		a.add(Finding{Whose: NotAsked, Kind: "record", Object: "a damaged record", Owner: at.Owner, Detail: at.LastError})
		return
	}
	a.recorded[at.ContainerID] = true
	a.namespaces[at.NetNS] = true
	for _, addr := range at.Addresses {
		a.addresses[addr.IP()] = at.ContainerID
	}
	a.hash(at.Network, at.ContainerID)
}

// readResult notes the interfaces of the host that a container's result has.
func (a *auditor) readResult(rt *cni.Runtime, id string) {
	result, err := rt.Lookup(id)
	switch {
	case errors.Is(err, cni.ErrNotAttached): // yet, or any more
		return
	case err != nil:
		a.unread("record", id, err)
		return
	}
	for _, n := range result.Networks {
		for _, i := range n.Interfaces {
			if i.Sandbox == "" {
				a.interfaces[i.Name] = true
			}
		}
	}
	// Others' things are told apart by the bridges that containers have; see links.
	for name := range a.interfaces {
		a.bridges[name] = true
	}
}

// readConfig notes the bridges and host-local's directories of the loaded networks.
func (a *auditor) readConfig(c *cni.ConfigResult) {
	for _, n := range c.Networks {
		for _, p := range n.Config.Plugins {
			a.readPlugin([]byte(p.Source))
		}
	}
}

func (a *auditor) readPlugin(source []byte) {
	var plugin struct {
		Type, Bridge, DataDir string
		IPAM                  struct{ DataDir string }
		Delegate              struct{ Type, Bridge string }
	}
	if json.Unmarshal(source, &plugin) != nil {
		return // another plugin's form
	}
	if plugin.IPAM.DataDir != "" {
		a.dataDirs[plugin.IPAM.DataDir] = true
	}
	if plugin.Type == "flannel" {
		if plugin.DataDir != "" {
			a.keptDirs[plugin.DataDir] = true
		}
		plugin.Type, plugin.Bridge = cmp.Or(plugin.Delegate.Type, "bridge"), plugin.Delegate.Bridge
	}
	if plugin.Type == "bridge" {
		if plugin.Bridge == "" {
			plugin.Bridge = "cni0"
		}
		a.bridges[plugin.Bridge] = true
	}
}

// judge adds a container on record that is gone, cannot be removed, or of which that is not
// known.
func (a *auditor) judge(v cni.Health, all []cni.Attachment) {
	for _, at := range all {
		if at.ContainerID != v.ContainerID {
			continue
		}
		f := Finding{Kind: "record", Object: at.IfName + " on " + at.Network, ContainerID: at.ContainerID, Network: at.Network, IfName: at.IfName, Owner: at.Owner}
		switch {
		case at.State == cni.Failed:
			f.Detail, f.Mend = "it could not be removed: "+at.LastError, a.command("remove "+at.ContainerID)
		case v.State == cni.StateGone:
			f.Detail, f.Mend = "its network namespace is gone", a.command("release "+at.ContainerID)
		case at.State == cni.Unknown:
			f.Whose, f.Detail = NotAsked, at.LastError
		case v.State == cni.StateUnknown:
			f.Whose, f.Detail = NotAsked, v.Reason.Error()
		default:
			continue
		}
		f.Detail = strings.ReplaceAll(f.Detail, "\n", "; ")
		if f.Whose == "" {
			f.Whose = Nobody
			if at.Owner != a.Owner {
				f.Whose = Another
				f.Mend += " --owner " + at.Owner
			}
		}
		a.add(f)
	}
}
