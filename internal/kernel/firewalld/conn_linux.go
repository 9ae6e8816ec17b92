package firewalld

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/netns"
)

const (
	busName    = "org.fedoraproject.FirewallD1"
	busPath    = "/org/fedoraproject/FirewallD1"
	zoneCalls  = busName + ".zone."
	exception  = busName + ".Exception"
	busErrors  = "org.freedesktop.DBus.Error."
	nameExists = "org.freedesktop.DBus.NameHasOwner"
)

// runningTime limits the query of Running. The bus itself answers it, at once
// unless it hangs.
const runningTime = 10 * time.Second

// Running reports whether a firewalld runs, for plugins in the network
// namespace ns; nil means the calling thread's. An error means that the answer
// is unknown: the bus exists but does not answer, or has too many connections.
// A bus that does not admit this user counts as one without a firewalld, as
// with the reference plugin.
func (b *Bus) Running(ctx context.Context, ns *netns.Handle) (running bool, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, runningTime, fmt.Errorf("no answer within %v: %w", runningTime, context.DeadlineExceeded))
	defer cancel()
	c, err := b.Dial(ctx, ns)
	if errors.Is(err, ErrNotRunning) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer c.Close()
	if err := c.call(c.conn.BusObject(), nameExists, &running, busName); err != nil {
		return false, fmt.Errorf("ask the D-Bus at %s for a firewalld: %w", b.address, err)
	}
	return running, nil
}

// Do calls fn with a connection to the bus, see [Bus.Dial].
func (b *Bus) Do(ctx context.Context, ns *netns.Handle, fn func(*Conn) error) error {
	c, err := b.Dial(ctx, ns)
	if err != nil {
		return err
	}
	defer c.Close()
	return fn(c)
}

// Conn is a connection to a bus. It ends with the context that was given to
// Dial.
type Conn struct {
	conn *dbus.Conn
	ctx  context.Context
	bus  *Bus
}

// Dial connects to the bus from the network namespace ns; nil means the calling
// thread's. The namespace matters only for the few addresses that are not
// files. Dial does not check for a firewalld. The caller must close the
// connection.
func (b *Bus) Dial(ctx context.Context, ns *netns.Handle) (*Conn, error) {
	if err := b.missing(); err != nil {
		return nil, fmt.Errorf("connect to the D-Bus at %s: %w", b.address, err)
	}
	select {
	case b.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("connect to the D-Bus at %s: %w", b.address, context.Cause(ctx))
	}
	c := &Conn{ctx: ctx, bus: b}
	err := c.dial(ns)
	if err == nil {
		return c, nil
	}
	c.Close()
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return nil, fmt.Errorf("connect to the D-Bus at %s: %w", b.address, err)
}

// missing returns ErrNotRunning if the address is that of a file and there is none. Each
// ADD asks, and most hosts of containers have no D-Bus: to find that out by a connection
// takes many times as long.
func (b *Bus) missing() error {
	path, ok := strings.CutPrefix(b.address, "unix:path=")
	if !ok || strings.ContainsAny(path, ";,%") { // several addresses, more keys, escaped bytes
		return nil
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%w: %s: %w", ErrNotRunning, path, err)
	}
	return nil
}

func (c *Conn) dial(ns *netns.Handle) error {
	open := func() (err error) {
		c.conn, err = dbus.Dial(c.bus.address, dbus.WithContext(c.ctx))
		return err
	}
	// A file is the same in every network namespace. To enter one costs ten times as much as
	// to find no such file.
	isFile := strings.HasPrefix(c.bus.address, "unix:path=") && !strings.Contains(c.bus.address, ";")
	var err error
	if ns != nil && !isFile {
		err = ns.Do(open)
	} else {
		err = open()
	}
	if err != nil {
		return absent(err)
	}
	// Like an executable, use the user ID in this user namespace, which may
	// differ from the one that the bus sees.
	if err := c.conn.Auth([]dbus.Auth{dbus.AuthExternal(strconv.Itoa(os.Geteuid()))}); err != nil {
		if brokenOff(err) {
			return err
		}
		return fmt.Errorf("%w: %w", ErrNotRunning, err)
	}
	return c.conn.Hello()
}

// absent wraps the error in ErrNotRunning, unless the error is transient: then
// there may be a bus.
func absent(err error) error {
	for _, passing := range []error{unix.EAGAIN, unix.EINTR, unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS, unix.ETIMEDOUT} {
		if errors.Is(err, passing) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", ErrNotRunning, err)
}

// brokenOff reports whether the bus has closed the connection, as it does with
// surplus ones, rather than refused it.
func brokenOff(err error) bool {
	var number unix.Errno
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, os.ErrClosed) || errors.As(err, &number)
}

// Close closes the connection.
func (c *Conn) Close() {
	if c.conn != nil {
		_ = c.conn.Close() // everything asked has been answered
	}
	<-c.bus.slots
}

// Has reports whether the address is in the zone. A zone that does not exist is
// an error.
func (c *Conn) Has(zone string, addr netip.Addr) (has bool, err error) {
	err = c.ask("querySource", &has, zone, addr)
	return has, err
}

// ZoneOf returns the zone that has the address as a source, or "".
func (c *Conn) ZoneOf(addr netip.Addr) (zone string, err error) {
	err = c.call(c.conn.Object(busName, busPath), zoneCalls+"getZoneOfSource", &zone, Source(addr))
	if err != nil {
		err = fmt.Errorf("firewalld: getZoneOfSource of %s: %w", Source(addr), err)
	}
	return zone, err
}

// Add adds the address to the zone. added is false if it was there already. Add
// fails if the address is in another zone.
func (c *Conn) Add(zone string, addr netip.Addr) (added bool, err error) {
	var in string
	switch err = c.ask("addSource", &in, zone, addr); {
	case codeOf(err) == "ZONE_ALREADY_SET":
		return false, nil
	case codeOf(err) == "ZONE_CONFLICT":
		return false, fmt.Errorf("%w; it is in another zone: take it out of that one "+
			"(firewall-cmd --get-zone-of-source=%s), or set firewalldZone to it", err, Source(addr))
	}
	return err == nil, err
}

// Remove removes the address from the zone. It succeeds if the address is in no
// zone, or in another.
func (c *Conn) Remove(zone string, addr netip.Addr) error {
	var from string
	err := c.ask("removeSource", &from, zone, addr)
	if Absent(err) {
		return nil
	}
	return err
}

// Absent reports whether an error means that the address is not in the zone: it
// is in none or another, there is no such zone, or no firewalld runs, which
// alone could keep it.
func Absent(err error) bool {
	switch codeOf(err) {
	case "UNKNOWN_SOURCE", "ZONE_CONFLICT", "INVALID_ZONE":
		return true
	}
	return errors.Is(err, ErrNotRunning)
}

func (c *Conn) ask(method string, result any, zone string, addr netip.Addr) error {
	object := c.conn.Object(busName, busPath)
	err := c.call(object, zoneCalls+method, result, zone, Source(addr))
	if err == nil {
		return nil
	}
	err = fmt.Errorf("firewalld: %s of %s in zone %q: %w", method, Source(addr), zone, err)
	if codeOf(err) == "INVALID_ZONE" {
		err = fmt.Errorf("%w; there is no such zone: make it (firewall-cmd --permanent --new-zone=%s, then --reload), "+
			"or set firewalldZone to one that there is (firewall-cmd --get-zones)", err, zone)
	}
	return err
}

// call calls a method. It keeps the bus from starting a service to answer.
func (c *Conn) call(object dbus.BusObject, method string, result any, args ...any) error {
	err := object.CallWithContext(c.ctx, method, dbus.FlagNoAutoStart, args...).Store(result)
	if err != nil && c.ctx.Err() != nil {
		return context.Cause(c.ctx)
	}
	said := dbus.Error{}
	if !errors.As(err, &said) {
		return err
	}
	switch {
	case said.Name == busErrors+"ServiceUnknown", said.Name == busErrors+"NameHasNoOwner":
		return fmt.Errorf("%w: %w", ErrNotRunning, err)
	case said.Name == busErrors+"AccessDenied", strings.Contains(said.Name, "NotAuthorized"):
		return fmt.Errorf("%w: %w", ErrDenied, err)
	}
	return err
}

// codeOf returns the code of an error of firewalld's, or "" for any other
// error. The code is the first word of
//
//	ZONE_ALREADY_SET: '10.1.0.2/32' already bound to 'trusted'
func codeOf(err error) string {
	said := dbus.Error{}
	if !errors.As(err, &said) || said.Name != exception {
		return ""
	}
	code, _, _ := strings.Cut(said.Error(), ":")
	return code
}
