package cni

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/embedcni/cni/internal/builtin"
	"github.com/embedcni/cni/internal/engine/engine"
	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/outcome"
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
	// caller's own values, see [WithMetadata].
	Ports    []PortMapping
	Args     map[string]string
	Metadata map[string]string

	// Requested are the ports of [WithPorts], with the host ports that Setup has chosen.
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
type AttachmentState = outcome.AttachmentState

const (
	Attaching AttachmentState = outcome.Attaching // plugins are running, or ran when the program was killed
	Attached  AttachmentState = outcome.Attached  // every plugin has answered
	Detaching AttachmentState = outcome.Detaching // as Attaching; or detached, while another attachment of the container stays
	Failed    AttachmentState = outcome.Failed    // detaching it failed; the next Remove, Recover or GC tries again
	Unknown   AttachmentState = outcome.Unknown   // the record cannot be used, and LastError has the reason
)

// Attachments lists the attachments recorded in the state directory, of all
// owners; with IDs, those of these containers. It runs nothing and waits for nothing:
// during a Setup an attachment is Attaching. An unusable record is listed once, with its
// legible part. A container that is not on record has none. With IDs only the records of
// the containers are read, however many others there are.
func (r *Runtime) Attachments(ids ...string) (all []Attachment, err error) {
	records := r.current.Load().eng.Store.Records
	found, err := named(records, ids)
	if err != nil {
		return nil, err
	}
	for _, f := range found {
		all = append(all, attachmentsOf(f.Record, engine.AsRecordError(records, f.Record.ContainerID, f.File, f.Err))...)
	}
	slices.SortStableFunc(all, func(a, b Attachment) int { return cmp.Compare(a.ContainerID, b.ContainerID) })
	return all, nil
}

// named returns the records of containers; all of them if none is named.
func named(records *record.Store, ids []string) (found []record.Found, err error) {
	if len(ids) == 0 {
		found, err = records.List()
		return record.WithoutTaken(found), err
	}
	for _, id := range ids {
		if err := engine.ValidateID(record.ID(id)); err != nil {
			return nil, err
		}
		f := records.Find(record.ID(id))
		if f.Record == nil {
			continue
		}
		f.Record.ContainerID = record.ID(id) // also if it is illegible
		if f.Record.Warm {                   // a record of another name may have taken it
			all, err := named(records, nil)
			if err != nil {
				return nil, err
			}
			if !slices.ContainsFunc(all, func(other record.Found) bool { return other.File == f.File }) {
				continue
			}
		}
		found = append(found, f)
	}
	return found, nil
}

func attachmentsOf(rec *record.Record, bad error) []Attachment {
	if bad != nil {
		return []Attachment{{ContainerID: string(rec.ContainerID), Owner: rec.Owner, State: Unknown, LastError: bad.Error()}}
	}
	var all []Attachment
	for n := range rec.Present() {
		all = append(all, attachmentOf(rec, n))
	}
	return all
}

func attachmentOf(rec *record.Record, n *record.Attachment) Attachment {
	a := Attachment{
		ContainerID: string(rec.ContainerID), Network: n.Network, IfName: n.IfName, NetNS: rec.NetNS.Path,
		Owner: rec.OwnerOf(n), Since: rec.Since, State: engine.StateOf(rec, n),
		Metadata: n.Metadata, Failures: n.Failures, LastTry: n.LastTry, LastError: n.LastError,
	}
	a.Ports, a.Args, a.Plugins = parametersOf(n)
	a.Requested = asPorts(n.Ports)
	if result := chain.Decode(n.Result); result != nil {
		for _, of := range engine.ContainerAddresses(result, n.IfName) {
			a.Addresses = append(a.Addresses, Address(of))
		}
	}
	return a
}

// parametersOf returns the parameters of an attachment as its caller gave them.
func parametersOf(n *record.Attachment) (ports []PortMapping, args map[string]string, plugins map[string]string) {
	ports = asMappings(engine.MappingsIn(n.Capabilities[engine.CapPortMappings]))
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

// Lookup returns the Result of a container's Setup from its record, without
// running a plugin. It returns [ErrNotAttached] if the container is not attached, or not
// yet.
func (r *Runtime) Lookup(id string) (*Result, error) {
	l := r.current.Load()
	if err := engine.ValidateID(record.ID(id)); err != nil {
		return nil, err
	}
	rec, err := engine.LoadRecord(l.eng.Store.Records, record.ID(id))
	if err != nil {
		return nil, fmt.Errorf("look up container %s: %w", id, err)
	}
	var sources []engine.Source
	if rec != nil {
		for _, n := range rec.Attachments {
			if result := chain.Decode(n.Result); n.Answered() && result != nil {
				sources = append(sources, engine.Source{Network: n.Network, IfName: n.IfName, Result: result, Ports: engine.RecordedMappings(&n)})
			}
		}
	}
	if sources == nil {
		return nil, fmt.Errorf("container %s is %w", id, ErrNotAttached)
	}
	result, err := newResult(sources, ifName(l.opts.prefix, 0))
	if err == nil {
		result.NetNS = engine.MadeNetNS(rec)
		result.notePorts(nil, sources)
		for n := range rec.Present() {
			if n.Answered() {
				result.addRequested(asPorts(n.Ports))
			}
		}
	}
	return result, err
}

// LookupAddr returns the attachments that have an address in their container, of all
// owners, from the records: those of Attachments with the address among their Addresses.
// Several can have it, on hosts' namespaces or networks that do not know each other. It
// returns [ErrNotAttached] if no container has it.
//
// An attachment of an earlier boot of the machine, which no longer has its address, does
// not count. Others count in each State, also if their container has died since; see
// Health.
//
// An address that every container may have, such as a loopback one, is
// [ErrInvalidArgument]. LookupAddr runs nothing and waits for nothing. It reads the records
// that have changed since the last call; other calls cost some microseconds for each
// record.
func (r *Runtime) LookupAddr(addr netip.Addr) ([]Attachment, error) {
	l := r.current.Load()
	all, err := l.lookupAddr(addr.WithZone("").Unmap())
	if err != nil {
		return nil, fmt.Errorf("look up address %v: %w", addr, err)
	}
	return all, nil
}

func (l *loaded) lookupAddr(addr netip.Addr) ([]Attachment, error) {
	if !addr.IsValid() || addr.IsLoopback() || addr.IsUnspecified() || addr.IsMulticast() {
		return nil, fmt.Errorf("it does not belong to one container: %w", ErrInvalidArgument)
	}
	found, err := l.eng.Addresses.Find(addr)
	if err != nil {
		return nil, err
	}
	boot, err := l.eng.Store.BootID()
	if err != nil {
		return nil, err
	}
	var all []Attachment
	for _, f := range record.WithoutTaken(found) {
		if f.Record.Boot != boot && f.Err == nil {
			continue
		}
		all = append(all, attachmentsWith(addr, f, l.eng.Store.Records)...)
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
	if bad := engine.AsRecordError(records, f.Record.ContainerID, f.File, f.Err); bad != nil && all != nil {
		return attachmentsOf(f.Record, bad)
	}
	return all
}

// Gateway is a gateway of a network, as a [Result] has it.
type Gateway struct {
	Prefix netip.Prefix // its address with the length of the subnet, not masked: 10.1.0.1/16
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
// It returns [ErrNotFound] if no network of that name is loaded, or if the configuration
// names no gateway, or only a plugin knows it, such as dhcp. Then the Result of a container
// has it.
func (r *Runtime) Gateways(network string) ([]Gateway, error) {
	l := r.current.Load()
	found, err := l.find(network)
	if err != nil {
		return nil, fmt.Errorf("gateways: %w", err)
	}
	var all []Gateway
	for _, n := range found {
		some, err := builtin.Gateways(n.conf.Config, l.opts.Choice.BuiltIn, func(typ string) bool { return !l.opts.Choice.IsRegistered(typ) })
		if err != nil {
			return nil, fmt.Errorf("gateways of network %q: %w: %w", network, ErrNotFound, err)
		}
		for _, g := range some {
			all = append(all, Gateway(g))
		}
	}
	return all, nil
}
