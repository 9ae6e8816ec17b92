package cni

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/warm"
)

// Attachment is an interface of a container, from its record.
type Attachment struct {
	ContainerID string
	Network     string
	IfName      string
	NetNS       string // the path given to Setup
	Owner       string // see WithOwner
	Since       time.Time
	State       AttachmentState
	Addresses   []Address // of the container, as far as plugins have reported them

	// The parameters of the Setup: the ports that it asked for, whether or not a
	// plugin of the network forwards any; the arguments, labels included; and the
	// caller's own values, see WithMetadata.
	Ports    []PortMapping
	Args     map[string]string
	Metadata map[string]string

	// Plugins has the kind of each plugin that attached it, by type. It is nil for
	// an attachment of an earlier version.
	Plugins map[string]PluginKind

	// Detaching it failed so often, last at that time with that error. If other
	// attachments of the container have failed, and this one has not, it has none.
	Failures  int
	LastTry   time.Time
	LastError string
}

// AttachmentState is the progress of an attachment.
type AttachmentState string

const (
	// Attaching: plugins are running, or the runtime was killed while they did.
	Attaching AttachmentState = "attaching"
	// Attached: every plugin has answered.
	Attached AttachmentState = "attached"
	// Detaching: plugins are running, or the runtime was killed while they did.
	Detaching AttachmentState = "detaching"
	// Ready: a Pool has made it ahead of time, and no container uses it yet.
	Ready AttachmentState = "ready"
	// Failed: detaching it failed. The next Remove, Recover or GC tries again.
	Failed AttachmentState = "failed"
	// Unknown: the record cannot be used, and LastError has the reason. Recover
	// and GC sweep a damaged record as far as it is legible, unless the container
	// may be alive. They leave alone a record that could not be read or that a
	// newer version wrote; see RecordError.
	Unknown AttachmentState = "unknown"
)

// Attachments lists the attachments recorded in the state directory, of all
// owners. It runs nothing and waits for nothing: during a Setup an attachment is
// Attaching. An unusable record is listed once, with its legible part.
func (r *Runtime) Attachments() ([]Attachment, error) {
	s := r.current.Load()
	found, err := s.Records.List()
	if err != nil {
		return nil, err
	}
	taken := warm.Taken(found)
	var all []Attachment
	for _, f := range found {
		if !f.Record.Warm || !taken[f.Record.Plugins()] {
			all = append(all, attachmentsOf(f.Record, recordError(s.Records, f.Record.ContainerID, f.File, f.Err))...)
		}
	}
	return all, nil
}

func attachmentsOf(rec *record.Record, bad error) []Attachment {
	if bad != nil {
		return []Attachment{{ContainerID: string(rec.ContainerID), Owner: rec.Owner, State: Unknown, LastError: bad.Error()}}
	}
	var all []Attachment
	for _, n := range rec.Attachments {
		if n.State == record.Deleted {
			continue
		}
		a := Attachment{
			ContainerID: string(rec.ContainerID), Network: n.Network, IfName: n.IfName, NetNS: rec.NetNS.Path,
			Owner: rec.OwnerOf(&n), Since: rec.Since, State: Attaching,
			Metadata: n.Metadata, Failures: n.Failures, LastTry: n.LastTry, LastError: n.LastError,
		}
		a.Ports, a.Args, a.Plugins = parametersOf(&n)
		switch {
		case n.Failures > 0:
			a.State = Failed
		case rec.Warm:
			a.State = Ready
		case n.State == record.Deleting:
			a.State = Detaching
		case n.State == record.Added:
			a.State = Attached
		}
		if result := chain.Decode(n.Result); result != nil {
			a.Addresses = containerAddresses(newNetworkResult(source{n.Network, n.IfName, result}))
		}
		all = append(all, a)
	}
	return all
}

// parametersOf returns the parameters of an attachment as its caller gave them.
func parametersOf(n *record.Attachment) (ports []PortMapping, args map[string]string, plugins map[string]PluginKind) {
	var wire []wirePort
	if json.Unmarshal(n.Capabilities[capPortMappings], &wire) == nil { // a value of another form is no list of ports
		for _, p := range wire {
			ports = append(ports, PortMapping(p))
		}
	}
	for _, arg := range n.Args {
		if args == nil {
			args = make(map[string]string, len(n.Args))
		}
		args[arg[0]] = arg[1]
	}
	for _, p := range n.Plugins {
		if plugins == nil {
			plugins = make(map[string]PluginKind, len(n.Plugins))
		}
		if p.Kind != "" {
			plugins[p.Type] = PluginKind(p.Kind)
		}
	}
	return ports, args, plugins
}

// containerAddresses returns the addresses of interfaces in the sandbox, or all
// if the plugins of the network do not report where their interfaces are.
func containerAddresses(n *NetworkResult) []Address {
	var inside, all []Address
	for _, i := range n.Interfaces {
		all = append(all, i.Addresses...)
		if i.Sandbox != "" {
			inside = append(inside, i.Addresses...)
		}
	}
	if inside != nil {
		return inside
	}
	return all
}

// Lookup returns the Result of a container's Setup from its record, without
// running a plugin. It returns ErrNotAttached if the container is not attached,
// or not yet.
func (r *Runtime) Lookup(id string) (*Result, error) {
	s := r.current.Load()
	if err := validateID(record.ID(id)); err != nil {
		return nil, err
	}
	rec, err := loadRecord(s.Records, record.ID(id))
	if err != nil {
		return nil, fmt.Errorf("look up container %s: %w", id, err)
	}
	var sources []source
	if rec != nil {
		for _, n := range rec.Attachments {
			if result := chain.Decode(n.Result); n.Answered() && result != nil {
				sources = append(sources, source{n.Network, n.IfName, result})
			}
		}
	}
	if sources == nil {
		return nil, fmt.Errorf("container %s is %w", id, ErrNotAttached)
	}
	return newResult(sources, ifName(s.prefix, 0))
}
