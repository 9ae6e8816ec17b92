package cni

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/embedcni/cni/internal/builtin"
	"github.com/embedcni/cni/internal/chain"
	"github.com/embedcni/cni/internal/record"
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
	Addresses   []Address // of the container, as plugins have reported them

	// The parameters of the Setup: the ports that it asked for, whether or not a
	// plugin of the network forwards any; the arguments, labels included; and the
	// caller's own values, see WithMetadata.
	Ports    []PortMapping
	Args     map[string]string
	Metadata map[string]string

	// Requested are the ports of WithPorts, with the host ports that Setup has chosen.
	Requested []Port

	// Plugins has the kind of each plugin that attached it, by type. It is nil for
	// an attachment of an earlier version.
	Plugins map[string]string

	// The number of failed detachments, and the time and the error of the last. The
	// failures of the container's other attachments are not among them.
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
	// Detaching: plugins are running, or the runtime was killed while they did, or it was
	// detached and stays on record because another attachment of the container failed.
	Detaching AttachmentState = "detaching"
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
	found, err := s.store.Records.List()
	if err != nil {
		return nil, err
	}
	var all []Attachment
	for _, f := range record.WithoutTaken(found) {
		all = append(all, attachmentsOf(f.Record, recordError(s.store.Records, f.Record.ContainerID, f.File, f.Err))...)
	}
	slices.SortStableFunc(all, func(a, b Attachment) int { return cmp.Compare(a.ContainerID, b.ContainerID) })
	return all, nil
}

// AttachmentsOf lists the attachments of one container, of all owners: those of Attachments
// with that ContainerID. There are none if it is not on record. It reads only the record of that
// container, however many others there are.
func (r *Runtime) AttachmentsOf(id string) ([]Attachment, error) {
	s := r.current.Load()
	if err := validateID(record.ID(id)); err != nil {
		return nil, err
	}
	rec, err := s.store.Records.Load(record.ID(id))
	if rec == nil {
		return nil, err
	}
	if rec.Warm { // a record of another name may have taken it
		all, err := r.Attachments()
		return slices.DeleteFunc(all, func(a Attachment) bool { return a.ContainerID != id }), err
	}
	return attachmentsOf(rec, recordError(s.store.Records, rec.ContainerID, record.Name(rec.ContainerID), err)), nil
}

func attachmentsOf(rec *record.Record, bad error) []Attachment {
	if bad != nil {
		return []Attachment{{ContainerID: string(rec.ContainerID), Owner: rec.Owner, State: Unknown, LastError: bad.Error()}}
	}
	var all []Attachment
	for n := range rec.Present() {
		a := Attachment{
			ContainerID: string(rec.ContainerID), Network: n.Network, IfName: n.IfName, NetNS: rec.NetNS.Path,
			Owner: rec.OwnerOf(n), Since: rec.Since, State: stateOf(rec, n),
			Metadata: n.Metadata, Failures: n.Failures, LastTry: n.LastTry, LastError: n.LastError,
		}
		a.Ports, a.Args, a.Plugins = parametersOf(n)
		a.Requested = recordedPorts(n)
		if result := chain.Decode(n.Result); result != nil {
			a.Addresses = containerAddresses(newNetworkResult(source{network: n.Network, ifName: n.IfName, result: result}))
		}
		all = append(all, a)
	}
	return all
}

// stateOf returns the progress of an attachment on record.
func stateOf(rec *record.Record, n *record.Attachment) AttachmentState {
	switch {
	case n.Failures > 0:
		return Failed
	case n.State == record.Deleting:
		return Detaching
	case n.State == record.Added:
		return Attached
	}
	return Attaching
}

// parametersOf returns the parameters of an attachment as its caller gave them.
func parametersOf(n *record.Attachment) (ports []PortMapping, args map[string]string, plugins map[string]string) {
	ports = mappingsIn(n.Capabilities[capPortMappings])
	for _, p := range n.Plugins {
		if plugins == nil {
			plugins = make(map[string]string, len(n.Plugins))
		}
		if p.Kind != "" {
			plugins[p.Type] = string(p.Kind)
		}
	}
	return ports, argsOf(n.Args), plugins
}

// argsOf returns arguments by their names; nil if there are none.
func argsOf(list [][2]string) (args map[string]string) {
	for _, arg := range list {
		if args == nil {
			args = make(map[string]string, len(list))
		}
		args[arg[0]] = arg[1]
	}
	return args
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
// running a plugin. It returns ErrNotAttached if the container is not attached, or not
// yet.
func (r *Runtime) Lookup(id string) (*Result, error) {
	s := r.current.Load()
	if err := validateID(record.ID(id)); err != nil {
		return nil, err
	}
	rec, err := loadRecord(s.store.Records, record.ID(id))
	if err != nil {
		return nil, fmt.Errorf("look up container %s: %w", id, err)
	}
	var sources []source
	if rec != nil {
		for _, n := range rec.Attachments {
			if result := chain.Decode(n.Result); n.Answered() && result != nil {
				sources = append(sources, source{n.Network, n.IfName, result, recordedMappings(&n)})
			}
		}
	}
	if sources == nil {
		return nil, fmt.Errorf("container %s is %w", id, ErrNotAttached)
	}
	result, err := newResult(sources, ifName(s.opts.prefix, 0))
	if err == nil {
		result.NetNS = madeNetNS(rec)
		result.notePorts(nil, sources)
		for n := range rec.Present() {
			if n.Answered() {
				result.addRequested(recordedPorts(n))
			}
		}
	}
	return result, err
}

// LookupAddr returns the attachments that have an address in their container, of all
// owners, from the records: those of Attachments with the address among their Addresses.
// Several can have it, on hosts' namespaces or networks that do not know each other. It
// returns ErrNotAttached if no container has it.
//
// An attachment of an earlier boot of the machine, which no longer has its address, does
// not count. Others count in each State, also if their container has died since; see
// Health.
//
// An address that every container may have, such as a loopback one, is
// ErrInvalidArgument. LookupAddr runs nothing and waits for nothing. It reads the records
// that have changed since the last call; other calls cost some microseconds for each
// record.
func (r *Runtime) LookupAddr(addr netip.Addr) ([]Attachment, error) {
	s := r.current.Load()
	all, err := s.lookupAddr(addr.WithZone("").Unmap())
	if err != nil {
		return nil, fmt.Errorf("look up address %v: %w", addr, err)
	}
	return all, nil
}

func (s *snapshot) lookupAddr(addr netip.Addr) ([]Attachment, error) {
	if !addr.IsValid() || addr.IsLoopback() || addr.IsUnspecified() || addr.IsMulticast() {
		return nil, fmt.Errorf("it does not belong to one container: %w", ErrInvalidArgument)
	}
	found, err := s.addresses.Find(addr)
	if err != nil {
		return nil, err
	}
	boot, err := s.store.BootID()
	if err != nil {
		return nil, err
	}
	var all []Attachment
	for _, f := range record.WithoutTaken(found) {
		if f.Record.Boot != boot && f.Err == nil {
			continue
		}
		all = append(all, attachmentsWith(addr, f, s.store.Records)...)
	}
	if all == nil {
		return nil, ErrNotAttached
	}
	return all, nil
}

// attachmentsWith returns the attachments of a record that have an address. One of an
// unusable record is the record's, if the address is in its legible part.
func attachmentsWith(addr netip.Addr, f record.Found, records *record.Store) (all []Attachment) {
	for _, a := range attachmentsOf(f.Record, nil) {
		if slices.ContainsFunc(a.Addresses, func(one Address) bool { return one.IP() == addr }) {
			all = append(all, a)
		}
	}
	if bad := recordError(records, f.Record.ContainerID, f.File, f.Err); bad != nil && all != nil {
		return attachmentsOf(f.Record, bad)
	}
	return all
}

// Gateway is a gateway of a network, as a Result has it.
type Gateway struct {
	// Prefix is its address with the length of the subnet, not masked: 10.1.0.1/16.
	Prefix netip.Prefix
	// OnHost means that an ADD gives the address to an interface of the host: a bridge
	// that is a gateway, or the host's end of a ptp pair. Services of the host can be
	// reached there. Otherwise a router of the network has it, or nobody.
	OnHost bool
}

// Gateways returns the gateways of a loaded network, from its configuration: no
// container need be attached to it. They are those that the addresses in a Result have,
// in the order of the configuration. If several loaded configurations have the name,
// those of all are returned.
//
// It returns ErrNotFound if no network of that name is loaded, or if the configuration
// names no gateway, or only a plugin knows it, such as dhcp. Then the Result of a container
// has it.
func (r *Runtime) Gateways(network string) ([]Gateway, error) {
	s := r.current.Load()
	found, err := s.find(network)
	if err != nil {
		return nil, fmt.Errorf("gateways: %w", err)
	}
	var all []Gateway
	for _, n := range found {
		some, err := builtin.Gateways(n.config, s.opts.choice.BuiltIn, func(typ string) bool { return !s.opts.choice.IsRegistered(typ) })
		if err != nil {
			return nil, fmt.Errorf("gateways of network %q: %w: %w", network, ErrNotFound, err)
		}
		for _, g := range some {
			all = append(all, Gateway(g))
		}
	}
	return all, nil
}
