package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/embedcni/cni"
)

// container is a container on record.
type container struct {
	id     string
	own    []cni.Attachment // of the owner that the command line names
	others []cni.Attachment
}

// changeable returns the containers of these IDs, in order and once each. It is an error if
// one is not on record, or if only other owners have attached one: those are changed by
// nobody who has not named the owner.
func (a *app) changeable(rt *cni.Runtime, ids []string) (all []container, err error) {
	recorded, err := a.recorded(rt, ids)
	if err != nil {
		return nil, err
	}
	for _, id := range unique(ids) {
		c, ok := recorded[id]
		switch {
		case !ok:
			return nil, notOnRecord(id)
		case len(c.own) == 0:
			return nil, a.foreign(c)
		}
		all = append(all, c)
	}
	return all, nil
}

// owned returns all containers of the owner, in the order of their IDs.
func (a *app) owned(rt *cni.Runtime) (all []container, err error) {
	recorded, err := a.recorded(rt, nil)
	for _, id := range slices.Sorted(maps.Keys(recorded)) {
		if c := recorded[id]; len(c.own) > 0 && id != "" {
			all = append(all, c)
		}
	}
	return all, err
}

// recorded returns the containers on record by ID; with IDs, only those.
func (a *app) recorded(rt *cni.Runtime, ids []string) (map[string]container, error) {
	all, err := rt.Attachments(ids...)
	if err != nil {
		return nil, err
	}
	found := map[string]container{}
	for _, at := range all {
		c := found[at.ContainerID]
		c.id = at.ContainerID
		if at.Owner == a.flags.owner {
			c.own = append(c.own, at)
		} else {
			c.others = append(c.others, at)
		}
		found[at.ContainerID] = c
	}
	return found, nil
}

func notOnRecord(id string) error { return fmt.Errorf("container %s: %w", id, cni.ErrNotAttached) }

// foreign is the refusal to change what another program has attached.
func (a *app) foreign(c container) error {
	owners := ownersOf(c.others)
	if owners[0] == "" { // a damaged record may not name its owner
		return advise(fmt.Errorf("container %s: its record does not say whose it is: %s", c.id, c.others[0].LastError),
			"The program that attached it sweeps the record when it starts, unless the container lives. "+
				"If you mean to do that now, name no owner: --owner ''.")
	}
	if a.flags.owner == "" {
		return advise(fmt.Errorf("container %s belongs to %s", c.id, strings.Join(owners, " and ")), "Name its owner: --owner %s.", owners[0])
	}
	return advise(fmt.Errorf("container %s belongs to %s, not to %s", c.id, strings.Join(owners, " and "), a.flags.owner),
		"If you mean to change it, name its owner: --owner %s.", owners[0])
}

// ownersOf returns the owners of attachments, once each.
func ownersOf(all []cni.Attachment) (owners []string) {
	for _, at := range all {
		owners = append(owners, at.Owner)
	}
	return unique(owners)
}

// unique is a list without repetitions, in order.
func unique(all []string) (once []string) {
	for _, s := range all {
		if !slices.Contains(once, s) {
			once = append(once, s)
		}
	}
	return once
}

// idsOf returns the IDs of containers.
func idsOf(all []container) []string {
	ids := make([]string, len(all))
	for i, c := range all {
		ids[i] = c.id
	}
	return ids
}

// selection has a call concern the owner's attachments alone, if others have attached the
// container too.
func (c container) selection() (opts []cni.NamespaceOpts) {
	if len(c.others) == 0 {
		return nil
	}
	for _, at := range c.own {
		opts = append(opts, cni.WithNetwork(at.Network, cni.WithInterfaceName(at.IfName)))
	}
	return opts
}

// othersPart says whose a part is that another owner's attachment has; nothing if it is not.
func (c container) othersPart(d cni.Difference) string {
	for _, at := range c.others {
		if at.Network == d.Network && at.IfName == d.IfName {
			return "of " + at.Owner + "'s attachment: see --owner"
		}
	}
	return ""
}
