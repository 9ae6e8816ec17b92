package cni

import (
	"fmt"
	"time"

	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/warm"
)

// Attachment is an interface of a container, as the record has it.
type Attachment struct {
	ContainerID string
	Network     string
	IfName      string
	NetNS       string // the path it was attached by
	Owner       string // who asked for it, see WithOwner
	Since       time.Time
	State       AttachmentState
	Addresses   []Address // of the container, as far as plugins have answered
	Failures    int       // how often detaching has failed
	LastError   string    // why, the last time
}

// AttachmentState is how far an attachment has got.
type AttachmentState string

const (
	// Attaching: plugins run, or the runtime was killed while they did.
	Attaching AttachmentState = "attaching"
	// Attached: every plugin has answered.
	Attached AttachmentState = "attached"
	// Detaching: plugins run, or the runtime was killed while they did.
	Detaching AttachmentState = "detaching"
	// Ready: a Pool has made it ahead of time, and no container has it yet.
	Ready AttachmentState = "ready"
	// Failed: it could not be detached; the next Remove, Recover or GC tries
	// again.
	Failed AttachmentState = "failed"
	// Unknown: the record cannot be used, and LastError says why. Recover and GC
	// sweep a damaged one as far as it is legible, unless the container may live.
	// They leave alone one that could not be read or is of a newer version, see
	// RecordError.
	Unknown AttachmentState = "unknown"
)

// Attachments lists what is recorded in the state directory, of all owners. It
// runs nothing and waits for nothing; a call that is under way shows as
// Attaching. A record that cannot be used is listed once, with what can be read
// of it.
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
			all = append(all, attachmentsOf(f.Record, s.recordError(f.Record.ContainerID, f.File, f.Err))...)
		}
	}
	return all, nil
}

func attachmentsOf(rec *record.Record, bad error) []Attachment {
	if bad != nil {
		return []Attachment{{ContainerID: string(rec.ContainerID), Owner: rec.Owner, State: Unknown, LastError: bad.Error()}}
	}
	var all []Attachment
	for _, n := range rec.Networks {
		if n.State == record.Deleted {
			continue
		}
		a := Attachment{
			ContainerID: string(rec.ContainerID), Network: n.Name, IfName: n.IfName, NetNS: rec.NetNS.Path,
			Owner: rec.OwnerOf(&n), Since: rec.Since, State: Attaching,
			Failures: n.Failures, LastError: n.LastError,
		}
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
			a.Addresses = containerAddresses(newNetworkResult(source{n.Name, n.IfName, result}))
		}
		all = append(all, a)
	}
	return all
}

// containerAddresses are those on interfaces in the sandbox, or all if the
// plugins of the network do not say where their interfaces are.
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

// Lookup returns what the Setup of a container returned, from its record: no
// plugin is run. A container that is not attached, or not yet, is ErrNotAttached.
func (r *Runtime) Lookup(id string) (*Result, error) {
	s := r.current.Load()
	if err := validateID(record.ID(id)); err != nil {
		return nil, err
	}
	rec, err := s.loadRecord(record.ID(id))
	if err != nil {
		return nil, fmt.Errorf("look up container %s: %w", id, err)
	}
	var sources []source
	if rec != nil {
		for _, n := range rec.Networks {
			if result := chain.Decode(n.Result); n.Answered() && result != nil {
				sources = append(sources, source{n.Name, n.IfName, result})
			}
		}
	}
	if sources == nil {
		return nil, fmt.Errorf("container %s is %w", id, ErrNotAttached)
	}
	return newResult(sources, ifName(s.prefix, 0))
}
