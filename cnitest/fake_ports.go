package cnitest

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/ports"
)

// choosePorts returns the plan with host ports where it leaves them open. Networks that
// share ports get the same. The host is locked.
func (h *fakeHost) choosePorts(plan *cni.Plan) (*cni.Plan, error) {
	sets, open, protocols := openPorts(plan)
	if open == 0 {
		return plan, nil
	}
	free, err := h.freePorts(plan, open, protocols)
	if err != nil {
		return nil, err
	}
	given := map[*cni.Port][]cni.Port{}
	for _, set := range sets {
		all := slices.Clone(set)
		for i := range all {
			if all[i].HostPort == 0 {
				all[i].HostPort, free = free[0], free[1:]
			}
		}
		given[&set[0]] = all
	}
	chosen := *plan
	chosen.Attachments = slices.Clone(plan.Attachments)
	for i := range chosen.Attachments {
		a := &chosen.Attachments[i]
		if len(a.Requested) == 0 {
			continue
		}
		if err := give(a, given[&a.Requested[0]]); err != nil {
			return nil, err
		}
	}
	return &chosen, nil
}

// openPorts returns the ports of each WithPorts, with the number of host ports to choose
// and their protocols.
func openPorts(plan *cni.Plan) (sets [][]cni.Port, open int, protocols []string) {
	seen := map[*cni.Port]bool{}
	for _, a := range plan.Attachments {
		if len(a.Requested) == 0 || seen[&a.Requested[0]] {
			continue
		}
		seen[&a.Requested[0]] = true
		sets = append(sets, a.Requested)
		for _, p := range a.Requested {
			if p.HostPort == 0 {
				open++
				protocols = append(protocols, p.Protocols...)
			}
		}
	}
	return sets, open, protocols
}

// give sets the ports that an attachment got. Those of the capability come first.
func give(a *cni.PlannedAttachment, got []cni.Port) error {
	fixed := 0
	for _, p := range a.Requested {
		if p.HostPort != 0 {
			fixed += len(p.Protocols)
		}
	}
	a.Ports = slices.Clone(a.Ports[:len(a.Ports)-fixed])
	a.Requested = got
	for _, p := range got {
		for _, protocol := range p.Protocols {
			a.Ports = append(a.Ports, cni.PortMapping{HostPort: p.HostPort, ContainerPort: p.ContainerPort, Protocol: protocol, HostIP: p.HostIP})
		}
	}
	var wire []map[string]any
	for _, m := range a.Ports {
		wire = append(wire, map[string]any{"hostPort": m.HostPort, "containerPort": m.ContainerPort, "protocol": m.Protocol, "hostIP": m.HostIP})
	}
	data, err := json.Marshal(wire)
	if err != nil {
		return err
	}
	capabilities := map[string]json.RawMessage{"portMappings": data}
	for name, value := range a.Capabilities {
		if name != "portMappings" {
			capabilities[name] = value
		}
	}
	a.Capabilities = capabilities
	return nil
}

// freePorts returns n ports of the range that no container has with one of the protocols.
// It begins behind the port that was chosen last.
func (h *fakeHost) freePorts(plan *cni.Plan, n int, protocols []string) (free []int32, err error) {
	first, last := int32(plan.FirstPort), int32(plan.LastPort)
	taken := map[int32]bool{}
	note := func(a cni.PlannedAttachment, more func(port int32)) {
		for _, claim := range claims(a) {
			if port := int32(claim.Port); first <= port && port <= last && slices.Contains(protocols, claim.Protocol) {
				taken[port] = true
				more(port)
			}
		}
	}
	for _, a := range plan.Attachments {
		note(a, func(int32) {})
	}
	owners, unrecorded := map[string]map[int32]bool{}, 0
	for c, a := range h.attached() {
		note(a.PlannedAttachment, func(port int32) {
			if h.containers[c.id] != c {
				unrecorded++
				return
			}
			if owners[a.owner] == nil {
				owners[a.owner] = map[int32]bool{}
			}
			owners[a.owner][port] = true
		})
	}
	size, next := last-first+1, int32(0)
	if first <= h.port && h.port <= last {
		next = h.port + 1 - first
	}
	for i := range size {
		if port := first + (next+i)%size; !taken[port] {
			free = append(free, port)
		}
	}
	if len(free) >= n {
		h.port = free[n-1]
		return free[:n], nil
	}
	e := &cni.PortRangeError{First: plan.FirstPort, Last: plan.LastPort, Wanted: n, Free: len(free), Unrecorded: unrecorded}
	for _, owner := range slices.Sorted(maps.Keys(owners)) {
		e.Containers = append(e.Containers, cni.OwnedPorts{Owner: owner, Ports: len(owners[owner])})
	}
	return nil, e
}

func claims(a cni.PlannedAttachment) []ports.Claim {
	if len(a.Ports) == 0 {
		return nil
	}
	return ports.Of(a.Capabilities["portMappings"])
}

// refusePorts refuses ports that another container has.
func (h *fakeHost) refusePorts(plan *cni.Plan) error {
	var errs []error
	for _, wanted := range plan.Attachments {
		for _, want := range claims(wanted) {
			for c, a := range h.attached() {
				for _, has := range claims(a.PlannedAttachment) {
					if c.id == plan.ContainerID || !has.Overlaps(want) {
						continue
					}
					e := &cni.PortError{
						Protocol: want.Protocol, HostIP: want.Addr, HostPort: int(want.Port), HolderIP: has.Addr,
						ContainerID: c.id, Network: a.Network, IfName: a.IfName, Err: cni.ErrPortInUse,
					}
					if h.containers[c.id] == c { // else it was released
						e.Owner, e.State = a.owner, a.state()
					}
					errs = append(errs, e)
				}
			}
		}
	}
	return join(errs)
}
