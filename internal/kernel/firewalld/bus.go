// Package firewalld has firewalld accept the packets from and to the addresses
// of containers, as the reference plugin firewall (v1.9.1) does. It adds them
// to a zone, "trusted" by default, each as the source 10.1.0.2/32 or
// fd00::2/128. Such a source is a runtime setting: firewalld loses it when it
// stops, restarts or reloads its configuration.
//
// The package calls firewalld over D-Bus. The caller opens a connection when it
// needs one and closes it afterwards. Every call ends with its context, even if
// the bus or firewalld hangs. The package never starts a firewalld.
package firewalld

import (
	"cmp"
	"errors"
	"net/netip"
)

// Variable names the environment variable with the address of the bus. It is
// for this package's callers; the package reads no environment.
const Variable = "DBUS_SYSTEM_BUS_ADDRESS"

// defaultAddress is the default address of the system's bus.
const defaultAddress = "unix:path=/var/run/dbus/system_bus_socket"

// DefaultZone is the zone if the configuration names none.
const DefaultZone = "trusted"

var (
	// ErrNotRunning means that no firewalld can be reached: there is no bus, the
	// bus does not admit this user, or no firewalld is on it. So no firewalld
	// has a source of this user's.
	ErrNotRunning = errors.New("no firewalld answers on the D-Bus")

	// ErrDenied means that firewalld, or the bus, refuses this user's calls.
	ErrDenied = errors.New("firewalld refuses this user's calls")
)

// mostConnections limits the connections that are open at the same time. A bus
// closes surplus connections; by default a user may have 256.
const mostConnections = 32

// Bus is a D-Bus that may have a firewalld. It is safe for concurrent use, and
// has no connection open between calls.
type Bus struct {
	address string
	slots   chan struct{} // a token for each connection that is open
}

// Open returns the bus at an address in the form of Variable, or the system's
// bus if the address is empty. It does not connect.
func Open(address string) *Bus {
	return &Bus{address: cmp.Or(address, defaultAddress), slots: make(chan struct{}, mostConnections)}
}

// Source returns an address in the form that the zones of firewalld have.
func Source(addr netip.Addr) string {
	addr = addr.Unmap().WithZone("")
	return netip.PrefixFrom(addr, addr.BitLen()).String()
}
