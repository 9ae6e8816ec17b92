// Package audit finds what on a host belongs to nobody: records and cached results of
// containers that are gone, reservations of addresses, rules, interfaces and namespaces
// that no container on record has. It changes nothing.
//
// A thing is somebody's if it names a container on record, an address of one or its
// interface. A container on no record may live all the same: libcni's cache may have it, with
// a namespace that lives, or a namespace in use has its address. What is left belongs to
// nobody, as far as the state directories know that were looked at.
package audit

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/embedcni/cni"
)

// Whose says to whom a thing belongs.
type Whose string

const (
	Nobody   Whose = "nobody's"
	Another  Whose = "another owner's" // or may be: it is not for this one to remove
	NotAsked Whose = "could not be asked"
)

// Finding is a thing on the host.
type Finding struct {
	Whose       Whose  `json:"whose"`
	Kind        string `json:"kind"` // record, cached result, reservation, delegate, rule, interface, bridge, namespace, tool
	Object      string `json:"object"`
	ContainerID string `json:"containerID,omitempty"` // that it names
	Network     string `json:"network,omitempty"`
	IfName      string `json:"ifName,omitempty"`
	Owner       string `json:"owner,omitempty"`
	Detail      string `json:"detail"`
	Mend        string `json:"mend,omitempty"` // what to do
}

// Options say where to look.
type Options struct {
	// Runtimes have the records: the first is the owner's; others have other directories.
	Runtimes []*cni.Runtime
	Owner    string
	// NetNSDir is where namespaces are pinned, /run/netns, and ProcDir where the host's
	// processes are, /proc.
	NetNSDir, ProcDir string
	// StateFlags are the flags of embedcni for the first Runtime, in mends.
	StateFlags string
}

// Run looks at everything. The error is the reason why it could not begin; what could not
// be read is a Finding.
//
// It looks again if anything is nobody's: a container that was attached meanwhile has its
// record before it has anything else, and keeps it longest.
func Run(ctx context.Context, o Options) ([]Finding, error) {
	found, err := look(ctx, o)
	if err != nil || !slices.ContainsFunc(found, func(f Finding) bool { return f.Whose == Nobody }) {
		return found, err
	}
	again, err := look(ctx, o)
	return slices.DeleteFunc(again, func(f Finding) bool { return f.Whose == Nobody && !slices.Contains(found, f) }), err
}

func look(ctx context.Context, o Options) ([]Finding, error) {
	a := &auditor{Options: o, index: newIndex()}
	for i, rt := range o.Runtimes {
		if err := a.readRecords(ctx, rt, i == 0); err != nil {
			return nil, err
		}
	}
	for _, rt := range o.Runtimes {
		a.readCache(rt.GetConfig().StateDir)
	}
	a.judgeCached()
	a.reservations()
	a.kept()
	if err := a.kernel(ctx, o.Runtimes[0].GetConfig().HostNetNS); err != nil {
		return nil, err
	}
	slices.SortStableFunc(a.found, func(x, y Finding) int {
		return cmp.Or(cmp.Compare(order(x.Whose), order(y.Whose)), strings.Compare(x.ContainerID, y.ContainerID),
			strings.Compare(x.Kind, y.Kind), strings.Compare(x.Object, y.Object))
	})
	return slices.Compact(a.found), nil
}

func order(w Whose) int { return slices.Index([]Whose{Nobody, Another, NotAsked}, w) }

// auditor is an audit in progress.
type auditor struct {
	Options
	index
	found  []Finding
	claims []claim
}

// claim is a thing that names a container on no record, or addresses of none.
type claim struct {
	Finding
	addresses []netip.Addr
}

func (a *auditor) add(f Finding) { a.found = append(a.found, f) }

// unread notes what could not be read.
func (a *auditor) unread(kind, object string, err error) {
	a.add(Finding{Whose: NotAsked, Kind: kind, Object: object, Detail: strings.ReplaceAll(err.Error(), "\n", "; ")})
}

// claim notes a thing for settle, unless its container is on record.
func (a *auditor) claim(f Finding, addresses ...netip.Addr) {
	if a.recorded[f.ContainerID] {
		return
	}
	if c, ok := a.cached[f.ContainerID]; ok {
		f.Network, f.IfName = cmp.Or(f.Network, c.network), cmp.Or(f.IfName, c.ifName)
		addresses = append(addresses, c.addresses...)
	}
	a.claims = append(a.claims, claim{f, addresses})
}

// settle adds the things that were claimed, when it is known which containers live.
func (a *auditor) settle(n namespaces) {
	living := map[string]string{} // by ID: how that is known
	for id, c := range a.cached {
		if c.alive {
			living[id] = "libcni's cache has its container, and namespace " + c.netns + " lives"
		}
	}
	used := func(c claim) (why string) {
		for _, addr := range c.addresses {
			if path, ok := n.addresses[addr]; ok {
				why = fmt.Sprintf("on no record, but namespace %s is in use and has address %s", path, addr)
			}
		}
		return why
	}
	for _, c := range a.claims {
		if why := used(c); why != "" && c.ContainerID != "" {
			living[c.ContainerID] = cmp.Or(living[c.ContainerID], why)
		}
	}
	for _, c := range a.claims {
		f := c.Finding
		switch why := cmp.Or(living[f.ContainerID], used(c)); {
		case why != "":
			f.Whose, f.Detail, f.Mend = Another, why, ""
		case n.hidden:
			f.Whose, f.Mend = NotAsked, ""
			f.Detail = "on no record; whether a process that cannot be seen has its namespace, root on the host can tell"
		default:
			f.Whose = Nobody
			f.Detail = cmp.Or(f.Detail, "its container is on no record, and no namespace in use has its address")
			if f.Mend == "" && f.ContainerID != "" && f.Network != "" && f.IfName != "" {
				f.Mend = a.command("cleanup " + f.ContainerID + " " + f.Network + " " + f.IfName)
			}
		}
		a.add(f)
	}
}

// command is a command of embedcni that mends something. It only lists what it would do.
func (a *auditor) command(args string) string {
	return strings.TrimSpace("embedcni " + args + " " + a.StateFlags)
}
