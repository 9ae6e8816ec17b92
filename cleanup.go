package cni

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/embedcni/cni/internal/firewalld"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/internal/record"
	"github.com/embedcni/cni/internal/sweep"
	"github.com/embedcni/cni/netns"
)

// LeftoverError says that a container, or a part of it, could not be removed. It
// is the error of every removal after which the container's record stays: of
// Remove, of CleanUp, of a Setup that could not be undone, and in the Failed of
// Recover and GC. Remove, or Recover and GC by themselves, try again; CleanUp
// gives up what Remove cannot end.
type LeftoverError struct {
	ContainerID string
	Left        []string // a line for each thing found after the removal, for a person
	Err         error    // why; *Errors of plugins are behind it
}

func (e *LeftoverError) Error() string {
	s := fmt.Sprintf("container %s could not be removed", e.ContainerID)
	if why := e.why(); why != "" {
		s += ": " + why
	}
	return s + "; call Remove again when that is mended, or CleanUp to give it up"
}

// why returns the cause, and the things left.
func (e *LeftoverError) why() string {
	var s []string
	if e.Err != nil {
		s = append(s, cmp.Or(closed(e.Err.Error()), noMessage))
	}
	if len(e.Left) > 0 {
		s = append(s, "left are "+strings.Join(e.Left, "; "))
	}
	return strings.Join(s, ": ")
}

// leftover makes an error by which a container stays on record a *LeftoverError,
// unless there is one in it.
func leftover(id record.ID, err error) error {
	if err == nil || errors.As(err, new(*LeftoverError)) {
		return err
	}
	return &LeftoverError{ContainerID: string(id), Err: err}
}

// Unwrap returns the cause.
func (e *LeftoverError) Unwrap() error { return e.Err }

// sweep removes what the reference plugins leave of the attachments when a DEL
// fails or is killed, and looks again. It returns neither lines nor an error only
// after verifying that nothing is left.
func (op *operation) sweep(ctx context.Context, attachments []*attachment) (left []string, err error) {
	var errs []error
	for _, a := range attachments {
		l, err := a.sweep(ctx)
		left = append(left, l...)
		errs = append(errs, err)
	}
	if len(errs) > 0 && join(errs...) == nil && len(left) == 0 {
		errs = append(errs, attachments[0].inherit(ctx))
	}
	return left, join(errs...)
}

// namesOf are the names of the attachments' interfaces.
func namesOf(attachments []*attachment) map[string]bool {
	names := make(map[string]bool, len(attachments))
	for _, a := range attachments {
		names[a.IfName] = true
	}
	return names
}

// sweepTime bounds the sweep of one attachment. Legacy iptables waits for its
// lock without end, and that may be another program's.
const sweepTime = time.Minute

func (a *attachment) sweep(ctx context.Context) (left []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, sweepTime)
	defer cancel()
	f, err := a.footprint()
	if err != nil {
		return nil, err
	}
	defer f.close()
	found, err := f.find(ctx)
	if err != nil {
		return nil, err
	}
	return a.clear(ctx, f, found)
}

// clear removes what was found, and looks again.
func (a *attachment) clear(ctx context.Context, f *footprint, found []sweep.Item) (left []string, err error) {
	if len(found) > 0 {
		a.op.logger.Info("sweeping what DEL has left", "container", a.op.id, "network", a.network.config.Name,
			"left", names(found))
		err = sweep.Remove(ctx, found)
		if found, ferr := f.find(ctx); ferr != nil || len(found) > 0 {
			return names(found), join(err, ferr)
		}
		// It is gone, so however an attempt to remove it ended it has been.
	}
	a.flush(f)
	return nil, nil
}

func names(items []sweep.Item) []string {
	var lines []string
	for _, item := range items {
		lines = append(lines, strings.Split(item.String(), "\n")...)
	}
	return lines
}

// knownWithoutUDP tells whether the attachment is known to have no UDP port:
// where there is a record, it has the ports. To look for flows takes the kernel
// through the whole table of connections, which is as long as ten containers'
// other work.
func (a *attachment) knownWithoutUDP() bool {
	if a.op.rec == nil || a.op.damaged || a.op.rec.Find(a.IfName) == nil {
		return false
	}
	var ports []struct {
		Protocol string `json:"protocol"`
	}
	data, err := json.Marshal(a.CapabilityArgs["portMappings"])
	if err != nil || json.Unmarshal(data, &ports) != nil {
		return false
	}
	for _, p := range ports {
		if strings.EqualFold(p.Protocol, "udp") {
			return false
		}
	}
	return true
}

// flush makes conntrack forget the UDP flows to the container, and not those to
// another one that has its address by now. A flow is not something that is left:
// there may be new ones any time, and a kernel without conntrack has none, so a
// failure is worth a line in the log.
func (a *attachment) flush(f *footprint) {
	if !f.UDP || f.Host == nil {
		return
	}
	if _, err := sweep.FlushFlows(f.Host, f.Addresses, f.inUse); err != nil {
		a.op.logger.Warn("flush UDP flows", "container", a.op.id, "error", err)
	}
}

// footprint is where an attachment may have left something.
type footprint struct {
	sweep.Target
	Filtered bool // its plugins make firewall rules
	UDP      bool // portmap is among them, perhaps with a UDP port

	hostPorts []netfilter.HostPort         // that were forwarded
	zones     []string                     // of firewalld, that may have the addresses
	isForeign func(zoned) bool             // reports whether it was in the zone before the attachment, and stays
	bus       *firewalld.Bus               // on which firewalld is reached
	inZonesOf func() ([]netip.Addr, error) // of other containers, that may be in zones
	own       netfilter.Rules              // the attachment's, in chains that siblings may share
	siblings  netfilter.Siblings           // attachments of the container that stay
	inUse     func() ([]netip.Addr, error) // of other containers
	opened    *netns.Handle                // to be closed; nil if Container is the operation's
}

// footprint reads it from the configuration and the result of the attachment.
func (a *attachment) footprint() (*footprint, error) {
	f := &footprint{}
	f.Network, f.ContainerID, f.IfName = a.network.config.Name, a.ContainerID, a.IfName
	// host-local does not sync its files: a power cut leaves empty ones.
	f.Thorough = a.state != record.Added || a.op.rebooted
	if f.FilesOnly = a.op.hostGone; f.FilesOnly {
		f.Thorough = true
	} else {
		f.Host = a.op.host.Handle
	}
	f.inUse = func() ([]netip.Addr, error) { return a.op.claims(f) }
	f.inZonesOf = func() ([]netip.Addr, error) { return a.op.zonedClaims(f) }
	for i, p := range a.network.config.Plugins {
		if err := f.plugin(i, p.Bytes); err != nil {
			return nil, err
		}
	}
	f.UDP = f.UDP && !a.knownWithoutUDP()
	f.Egress = limitsEgress(a.network.config.Plugins, a.CapabilityArgs)
	f.OthersShaper = a.othersShaper
	a.aimBackups(f)
	a.aimZones(f)
	a.aim(&f.Target)
	f.result(decodeResult(json.RawMessage(a.partial)))
	f.Emptied = a.emptied(f.Addresses)
	if f.siblings = a.sharing(); len(f.siblings.Owners) > 0 {
		f.own = a.ownRules()
	}
	var err error
	if f.hostPorts, err = hostPorts(a.CapabilityArgs[capPortMappings]); err != nil {
		f.Thorough = true // so they are looked for
	}
	if f.Container = a.inside(); f.Container == nil && a.NetNS != "" && f.Host != nil {
		// A namespace that is gone is no reason to stop: what was in it is too.
		f.Container, _ = netns.Open(a.NetNS)
		f.opened = f.Container
	}
	return f, nil
}

func (f *footprint) close() {
	if f.opened != nil {
		_ = f.opened.Close() // was only looked into
	}
}

// hostLocalDir is where host-local keeps its addresses by default.
const hostLocalDir = "/var/lib/cni/networks"

// plugin adds what one plugin of the chain may have left. A field that a
// reference plugin knows may mean something else to another plugin, the
// caller's own one of a reference plugin's name included, and be of any type.
// What cannot be read is looked for.
func (f *footprint) plugin(position int, config []byte) error {
	var c struct {
		Type        string          `json:"type"`
		IPMasq      json.RawMessage `json:"ipMasq"`
		MACSpoofChk json.RawMessage `json:"macspoofchk"`
		IPAM        json.RawMessage `json:"ipam"`
	}
	if err := json.Unmarshal(config, &c); err != nil {
		return fmt.Errorf("configuration of plugin %d: %w", position, err)
	}
	k := known.Of(c.Type)
	f.OwnsIf = f.OwnsIf || position == 0 && k.Makes.IsOwned()
	f.UDP = f.UDP || k.Rules == known.HostPorts
	f.Shaped = f.Shaped || c.Type == known.Bandwidth
	switch k.Rules {
	case known.Masquerade:
		f.Filtered = f.Filtered || perhaps(c.IPMasq) || perhaps(c.MACSpoofChk)
	case known.HostPorts, known.Forward:
		f.Filtered = true
	}
	f.addresses(c.IPAM)
	return nil
}

// perhaps reports whether a field may be set: it is true, or no boolean.
func perhaps(field json.RawMessage) bool {
	var set bool
	return field != nil && (json.Unmarshal(field, &set) != nil || set)
}

// addresses adds the directory in which host-local keeps a network's addresses,
// if the plugin gets them from there.
func (f *footprint) addresses(ipam json.RawMessage) {
	var c struct {
		Type    string `json:"type"`
		DataDir string `json:"dataDir"`
	}
	if ipam == nil || !readable(json.Unmarshal(ipam, &c)) || c.Type != known.HostLocal {
		return
	}
	dir := hostLocalDir
	if c.DataDir != "" {
		dir = c.DataDir
	}
	f.IPAMDirs = append(f.IPAMDirs, filepath.Join(dir, f.Network))
}

// readable reports whether JSON was read but for fields of another type, which
// encoding/json passes over.
func readable(err error) bool {
	var other *json.UnmarshalTypeError
	return err == nil || errors.As(err, &other)
}

// result adds what the ADD said it had made.
func (f *footprint) result(r *types100.Result) {
	if r == nil {
		return
	}
	for _, i := range r.Interfaces {
		if i.Sandbox == "" {
			f.Links = append(f.Links, sweep.Link{Name: i.Name, MAC: i.Mac})
		}
	}
	for _, ip := range r.IPs {
		if addr, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			f.Addresses = append(f.Addresses, addr.Unmap())
		}
	}
}

// decodeResult reads a recorded result, of any version; nil if there is none
// that can be used.
func decodeResult(data json.RawMessage) *types100.Result {
	if data == nil {
		return nil
	}
	r, err := create.CreateFromBytes(data)
	if err != nil {
		return nil
	}
	result, err := types100.NewResultFromResult(r)
	if err != nil || validateResult(result) != nil {
		return nil
	}
	return result
}

// find lists what is there, in the order in which it is to be removed.
func (f *footprint) find(ctx context.Context) ([]sweep.Item, error) {
	if f.Host == nil && !f.FilesOnly {
		return nil, nil
	}
	zoned, zerr := f.inZones(ctx)
	var rules []sweep.Item
	var rerr error
	if !f.FilesOnly {
		rules, rerr = f.rules(ctx)
	}
	rest, err := sweep.Find(ctx, f.Target)
	return slices.Concat(zoned, rules, rest), join(zerr, rerr, err)
}

// sweptAll reports whether the sweep undoes all that plugins of these types can
// leave, for these attachments. The failed DEL of any other plugin stays a failure.
func sweptAll(attachments []*attachment, types []string) bool {
	return !slices.ContainsFunc(types, func(typ string) bool {
		return slices.ContainsFunc(attachments, func(a *attachment) bool { return !a.sweeps(typ) })
	})
}

// sweeps reports whether the sweep knows all that a plugin of the attachment can
// leave, and undoes it. An interface that outlives the attachment must be known.
func (a *attachment) sweeps(typ string) bool {
	switch k := known.Of(typ); {
	case a.isCallers(typ):
		return false
	case k.Borrows:
		return !a.has(typ) || a.knowsInterface()
	default:
		return k.Swept
	}
}

// vouched tells whether a sweep that found nothing makes up for failed DELs.
func (op *operation) vouched(attachments []*attachment, err error) bool {
	for _, e := range pluginErrors(err) {
		var failed *Error
		if !errors.As(e, &failed) || !sweptAll(attachments, op.failedTypes(attachments, failed)) {
			return false
		}
	}
	for _, a := range attachments {
		for _, p := range a.network.config.Plugins {
			ipam := p.Network.IPAM.Type
			if ipam != "" && (!known.Of(ipam).IPAM || a.isCallers(ipam)) {
				return false
			}
		}
	}
	return len(pluginErrors(err)) > 0
}
