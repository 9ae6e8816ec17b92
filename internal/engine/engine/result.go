package engine

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/run/chain"
	"github.com/embedcni/cni/internal/store/record"
	"github.com/embedcni/cni/outcome"
)

// address is an address of a result with its prefix, and the gateway, if there is one.
type address struct {
	Prefix  netip.Prefix
	Gateway netip.Addr
}

// NewAddress converts an address. A missing or impossible prefix length, as in results
// built by hand, becomes that of a single host.
func NewAddress(n net.IPNet, gateway net.IP) address {
	ip, ok := netip.AddrFromSlice(n.IP)
	if !ok {
		return address{}
	}
	bits, size := n.Mask.Size()
	if size != 128 || bits >= 96 { // ::ffff:10.0.0.1/64 is nothing as IPv4
		ip = ip.Unmap()
	}
	switch {
	case size == 128 && bits >= 96 && ip.Is4():
		bits -= 96
	case size != ip.BitLen():
		bits = ip.BitLen()
	}
	a := address{Prefix: netip.PrefixFrom(ip, bits)}
	if gw, ok := netip.AddrFromSlice(gateway); ok {
		a.Gateway = gw.Unmap()
	}
	return a
}

// Holder returns the index of the interface that has an address: the one that it names, or
// the network's own, inside the container rather than on the host. Without either it is the
// number of interfaces.
func Holder(result *types100.Result, ip *types100.IPConfig, ifName string) int {
	if ip.Interface != nil {
		return *ip.Interface
	}
	for _, inside := range []bool{true, false} {
		i := slices.IndexFunc(result.Interfaces, func(i *types100.Interface) bool {
			return i.Name == ifName && (i.Sandbox != "" || !inside)
		})
		if i >= 0 {
			return i
		}
	}
	return len(result.Interfaces)
}

// ContainerAddresses returns the addresses in a result of the interfaces inside the
// container; all if no interface with an address is inside.
func ContainerAddresses(result *types100.Result, ifName string) []address {
	var inside, all []address
	for i := 0; i <= len(result.Interfaces); i++ {
		for _, ip := range result.IPs {
			if Holder(result, ip, ifName) != i {
				continue
			}
			a := NewAddress(ip.Address, ip.Gateway)
			all = append(all, a)
			if i < len(result.Interfaces) && result.Interfaces[i].Sandbox != "" {
				inside = append(inside, a)
			}
		}
	}
	if inside != nil {
		return inside
	}
	return all
}

// Union adds those of more that are not in the list.
func Union(list, more []string) []string {
	for _, s := range more {
		if !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	return list
}

// SetupResult is what a Setup has made.
type SetupResult struct {
	Attached []Source
	Earlier  []Source // attachments of an earlier call, to which ports may be forwarded
	NetNS    string   // the namespace, if the library made it
	// portWarnings are about ports of the host that are forwarded nevertheless; requested
	// are the ports that the caller asked for by themselves, with those chosen.
	PortWarnings []*outcome.PortError
	Requested    []record.Port
	Ignored      []string // capabilities that no plugin declares
}

// Source is the result of one network's plugins.
type Source struct {
	Network string
	IfName  string
	Result  *types100.Result
	Ports   []Mapping
}

// Validate returns an error for results that cannot be converted.
func Validate(all []Source) error {
	for _, s := range all {
		if err := chain.Walkable(s.Result); err != nil {
			return fmt.Errorf("network %q: %w: %w", s.Network, err, outcome.ErrInvalidResult)
		}
	}
	return nil
}

// MadeNetNS returns the path of a recorded namespace if this library has made it.
func MadeNetNS(rec *record.Record) string {
	if rec == nil || !rec.NetNS.Ours {
		return ""
	}
	return rec.NetNS.Path
}

// rollbackError is a failure that could not be undone. It has a type of its own
// so that nobody treats it as the failure alone.
type rollbackError struct{ err, rollback error }

func (r *rollbackError) Error() string { return joined.Errors(r.err, r.rollback).Error() }

// Format prints both with %+v.
func (r *rollbackError) Format(s fmt.State, verb rune) {
	joined.Errors(r.err, r.rollback).(fmt.Formatter).Format(s, verb)
}

func (r *rollbackError) Unwrap() []error { return []error{r.err, r.rollback} }

// leftBehind is the error of a rollback that could not remove everything. The error of the
// ADD, which stands before it, and those of the DELs in it name the container.
type leftBehind struct{ error }

func (l *leftBehind) Error() string { return l.of(l.error.Error()) }

// Format prints the leftovers with %+v.
func (l *leftBehind) Format(s fmt.State, verb rune) {
	if joined.Whole(s, verb) {
		_, _ = io.WriteString(s, l.of(fmt.Sprintf("%+v", l.error)))
		return
	}
	joined.Print(s, verb, l.Error())
}

func (l *leftBehind) of(text string) string {
	if left, ok := l.error.(*outcome.LeftoverError); ok {
		text = strings.TrimPrefix(text, "container "+left.ContainerID+" could not be removed: ")
	}
	return "roll back: " + text
}

func (l *leftBehind) Unwrap() error { return l.error }
