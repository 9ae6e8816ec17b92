// Package firewalld asks a firewalld to accept what the addresses of containers
// send and receive, as the reference plugin firewall (v1.9.1) does: it puts them
// into a zone, "trusted" by default, each as the source 10.1.0.2/32 or
// fd00::2/128. Such a source is a runtime setting: it is lost when firewalld
// ends, is started again or reloads its configuration.
//
// firewalld is asked over D-Bus. A connection is made for a call and closed
// behind it, so that nothing of it stays, and all that is asked ends with its
// context, even if the bus or firewalld hangs. No firewalld is ever started.
package firewalld

import (
	"context"
	"errors"
	"net/netip"
)

// Variable is the environment variable with the address of the bus, for this
// package's callers: it reads no environment itself.
const Variable = "DBUS_SYSTEM_BUS_ADDRESS"

// defaultAddress is where the system's bus is if nobody says otherwise.
const defaultAddress = "unix:path=/var/run/dbus/system_bus_socket"

// DefaultZone is the zone of addresses for which none is configured.
const DefaultZone = "trusted"

var (
	// ErrNotRunning means that no firewalld can be reached: there is no bus, it
	// takes no calls of this user, or no firewalld is on it. So none has anything
	// of this user's.
	ErrNotRunning = errors.New("no firewalld answers on the D-Bus")

	// ErrDenied means that firewalld, or the bus, refuses this user's calls.
	ErrDenied = errors.New("firewalld refuses this user's calls")
)

// mostConnections bounds how many connections are open at the same time. A bus
// closes those that are too many; by default a user may have 256.
const mostConnections = 32

// Bus is a D-Bus on which there may be a firewalld. It may be used by many
// goroutines at once, and has no connection open between calls.
type Bus struct {
	address string
	slots   chan struct{} // a token for each connection that is open
}

// Open returns the bus at an address, as the variable has it; empty: the
// system's. It does not connect.
func Open(address string) *Bus {
	if address == "" {
		address = defaultAddress
	}
	return &Bus{address: address, slots: make(chan struct{}, mostConnections)}
}

// Address is where the bus is.
func (b *Bus) Address() string { return b.address }

type busKey struct{}

// With returns a context in which plugins ask on the bus.
func With(ctx context.Context, b *Bus) context.Context { return context.WithValue(ctx, busKey{}, b) }

// From returns the bus of the context, or else the system's.
func From(ctx context.Context) *Bus {
	if b, ok := ctx.Value(busKey{}).(*Bus); ok {
		return b
	}
	return Open("")
}

// Source is an address as firewalld has it in a zone.
func Source(addr netip.Addr) string {
	addr = addr.Unmap().WithZone("")
	return netip.PrefixFrom(addr, addr.BitLen()).String()
}
