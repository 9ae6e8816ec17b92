package fwrules

import (
	"errors"
	"fmt"
	"net/netip"
)

// ErrMissing is the error of a check about rules that do not exist, or are not as the
// ADD made them. Another error means that the rules could not be read.
var ErrMissing = errors.New("a rule is missing")

// AsMissing returns err as an [ErrMissing]. Its text stays.
func AsMissing(err error) error {
	if err == nil {
		return nil
	}
	return missingError{err}
}

type missingError struct{ error }

func (e missingError) Is(target error) bool { return target == ErrMissing }
func (e missingError) Unwrap() error        { return e.error }

// ErrInPlace means that a missing rule was not added: another one is in its place,
// which must not be replaced.
var ErrInPlace = errors.New("another rule is in its place")

// Part is a part of rules that can be missing by itself: an address of a masquerade, a
// port of the host, an address or the ingress policy of a forward.
type Part struct {
	Rules  Rules // it alone
	Object string
}

// Parts returns the parts of the rules, in order.
func (r Rules) Parts() (parts []Part) {
	add := func(object string, one Rules) { parts = append(parts, Part{one, object}) }
	for _, m := range r.Masquerade {
		for _, p := range m.Addresses {
			add("masquerading of "+p.Addr().Unmap().String(), Rules{Masquerade: []Masquerade{{Owner: m.Owner, Addresses: []netip.Prefix{p}}}})
		}
	}
	for _, h := range r.HostPorts {
		if len(h.Ports) == 0 && h.SNAT {
			add("masquerading of the forwarded ports' packets", Rules{HostPorts: []HostPorts{h}})
		}
		for _, p := range h.Ports {
			one := h
			one.Ports = []HostPort{p}
			add(p.object(), Rules{HostPorts: []HostPorts{one}})
		}
	}
	for _, f := range r.Forward {
		for _, one := range f.parts() {
			add(one.object(), Rules{Forward: []Forward{one}})
		}
	}
	for _, s := range r.Spoof {
		add("check of the MAC address", Rules{Spoof: []SpoofCheck{s}})
	}
	return parts
}

// object returns "tcp 8080", or "tcp 192.0.2.1:8080".
func (p HostPort) object() string {
	if !p.HostIP.IsValid() || p.HostIP.IsUnspecified() {
		return fmt.Sprintf("%s %d", p.Protocol, p.HostPort)
	}
	return fmt.Sprintf("%s %v", p.Protocol, netip.AddrPortFrom(p.HostIP.Unmap(), p.HostPort))
}

// parts returns a Forward for each address, without the policy, and one for the
// policy.
func (f Forward) parts() (all []Forward) {
	if !f.IngressOnly {
		for _, a := range f.Addresses {
			one := f
			one.Addresses, one.Ingress = []netip.Prefix{a}, ""
			all = append(all, one)
		}
	}
	if f.Ingress != "" && f.Ingress != "open" {
		one := f
		one.IngressOnly = true
		all = append(all, one)
	}
	return all
}

func (f Forward) object() string {
	if f.IngressOnly {
		return fmt.Sprintf("ingress policy %s of %s", f.Ingress, f.Bridge)
	}
	return "forwarding for " + f.Addresses[0].Addr().Unmap().String()
}
