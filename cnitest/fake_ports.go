package cnitest

import (
	"encoding/json"
	"errors"
	"slices"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/ports"
)

// The ports from which a Fake chooses, as a Runtime does by default.
const firstPort, lastPort = 20000, 29999

// choosePorts returns the plan with host ports where it leaves them open. The host is
// locked.
func (h *fakeHost) choosePorts(plan *cni.Plan) (*cni.Plan, error) {
	chosen := *plan
	chosen.Attachments = slices.Clone(plan.Attachments)
	for i := range chosen.Attachments {
		a := &chosen.Attachments[i]
		a.Requested, a.Ports = slices.Clone(a.Requested), slices.Clone(a.Ports)
		open := false
		for j := range a.Requested {
			p := &a.Requested[j]
			if p.HostPort != 0 {
				continue
			}
			open = true
			if p.HostPort = h.freePort(); p.HostPort == 0 {
				return nil, errors.New("all host ports from which to choose are in use")
			}
			for _, protocol := range p.Protocols {
				a.Ports = append(a.Ports, cni.PortMapping{HostPort: p.HostPort, ContainerPort: p.ContainerPort, Protocol: protocol, HostIP: p.HostIP})
			}
		}
		if !open {
			continue
		}
		var wire []map[string]any
		for _, m := range a.Ports {
			wire = append(wire, map[string]any{"hostPort": m.HostPort, "containerPort": m.ContainerPort, "protocol": m.Protocol, "hostIP": m.HostIP})
		}
		data, err := json.Marshal(wire)
		if err != nil {
			return nil, err
		}
		capabilities := map[string]json.RawMessage{}
		for name, value := range a.Capabilities {
			capabilities[name] = value
		}
		capabilities["portMappings"], a.Capabilities = data, capabilities
	}
	return &chosen, nil
}

// freePort returns the next port that no container has, or 0.
func (h *fakeHost) freePort() int32 {
	for range lastPort - firstPort + 1 {
		if h.port++; h.port < firstPort || h.port > lastPort {
			h.port = firstPort
		}
		taken := false
		for _, c := range h.containers {
			for _, a := range c.attachments {
				taken = taken || slices.ContainsFunc(claims(a.PlannedAttachment), func(has ports.Claim) bool { return int32(has.Port) == h.port })
			}
		}
		if !taken {
			return h.port
		}
	}
	return 0
}
