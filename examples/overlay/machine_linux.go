package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/rpc"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// machine is a host as it is seen from the room: its disk, its cable and its power.
type machine struct {
	name   string
	number int
	cmd    *exec.Cmd
	rpc    *rpc.Client
	lease  Lease
	before []string // the audit of its first start
}

func newMachine(number int) *machine {
	return &machine{name: fmt.Sprint("host-", number), number: number}
}

// isOn reports whether the host's agent can be called.
func (m *machine) isOn() bool { return m.rpc != nil }

// disk is what survives when the machine loses power.
func (m *machine) disk() string { return filepath.Join(workDir, m.name) }

// powerOn starts the host's process 1, plugs the cable, and has the runtime recover.
func (m *machine) powerOn(ctx context.Context) (booted Booted, err error) {
	if err := os.MkdirAll(m.disk(), 0o755); err != nil {
		return booted, err
	}
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return booted, err
	}
	here, there := os.NewFile(uintptr(ends[0]), m.name), os.NewFile(uintptr(ends[1]), m.name)
	defer there.Close()
	conn, err := net.FileConn(here)
	if err = errors.Join(err, here.Close()); err != nil {
		return booted, err
	}
	m.cmd = exec.Command("/proc/self/exe")
	m.cmd.Stderr = os.Stderr
	m.cmd.ExtraFiles = []*os.File{there}
	m.cmd.Env = append(os.Environ(), hostVariable+"="+strconv.Itoa(m.number))
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: ownNamespaces, Setpgid: true}
	if err := m.cmd.Start(); err != nil {
		return booted, errors.Join(err, conn.Close())
	}
	m.rpc = rpc.NewClient(conn)
	if err := m.plug(); err != nil {
		return booted, err
	}
	return call[Booted](ctx, m, "Boot", 0)
}

// plug makes the cable between the host's eth0 and the wire. The network card keeps its address
// when the host starts again.
func (m *machine) plug() error {
	bridge, err := netlink.LinkByName(wire)
	if err != nil {
		return err
	}
	mac := net.HardwareAddr{0x02, 0, 0, 0, 0x50, byte(m.number)}
	cable := netlink.NewVeth(netlink.LinkAttrs{Name: m.name, MasterIndex: bridge.Attrs().Index})
	cable.PeerName, cable.PeerHardwareAddr, cable.PeerNamespace = "eth0", mac, netlink.NsPid(m.cmd.Process.Pid)
	if err := netlink.LinkAdd(cable); err != nil {
		return fmt.Errorf("plug %s: %w", m.name, err)
	}
	return m.mend()
}

// cut and mend are about the cable's end at the wire.
func (m *machine) cut() error  { return m.cable(netlink.LinkSetDown) }
func (m *machine) mend() error { return m.cable(netlink.LinkSetUp) }

func (m *machine) cable(change func(netlink.Link) error) error {
	link, err := netlink.LinkByName(m.name)
	if err == nil {
		err = change(link)
	}
	if err != nil {
		return fmt.Errorf("cable of %s: %w", m.name, err)
	}
	return nil
}

// powerOff kills process 1, and so everything on the host, and unplugs the cable: the kernel may
// remove the host's network much later.
func (m *machine) powerOff() error {
	if err := m.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("kill %s: %w", m.name, err)
	}
	_ = m.cmd.Wait() // it was killed
	_ = m.rpc.Close()
	m.rpc = nil
	err := m.cable(netlink.LinkDel)
	if errors.As(err, new(netlink.LinkNotFoundError)) || errors.Is(err, unix.ENODEV) {
		return nil // the kernel was faster, or it was never plugged
	}
	return err
}

// call calls a method of the host's agent.
func call[Reply any](ctx context.Context, m *machine, method string, args any) (Reply, error) {
	var reply, none Reply
	c := m.rpc.Go("Agent."+method, args, &reply, make(chan *rpc.Call, 1))
	select {
	case <-c.Done:
		if c.Error != nil {
			return reply, fmt.Errorf("%s: %w", m.name, c.Error)
		}
		return reply, nil
	case <-ctx.Done(): // the agent may still be writing to reply
		return none, fmt.Errorf("%s: %s: %w", m.name, method, context.Cause(ctx))
	}
}
