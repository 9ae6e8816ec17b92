package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// roomVariable marks process 1 of the room in which the wire and etcd are. It holds
	// flanneld's path and version.
	roomVariable = "EMBEDCNI_OVERLAY_ROOM"
	// hostVariable marks process 1 of a host, and holds its number.
	hostVariable = "EMBEDCNI_OVERLAY_HOST"

	// workDir is on a tmpfs of the room, and visible on all hosts.
	workDir  = "/mnt"
	flanneld = workDir + "/flanneld"

	wire = "wire" // the bridge
)

// onWire reports whether an address is that of a host on the wire.
func onWire(ip netip.Addr) bool {
	return netip.PrefixFrom(address(0), 24).Contains(ip) || netip.PrefixFrom(address6(0), 64).Contains(ip)
}

// address returns the address of a host on the wire, of 0 for etcd's, and address6 the other one.
func address(number int) netip.Addr { return netip.AddrFrom4([4]byte{192, 168, 50, byte(1 + number)}) }

func address6(number int) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf("fd00:50::%x", 1+number))
}

// start runs this process's part: outside, of the room, or of a host.
func start(ctx context.Context, o options) (code int, err error) {
	var path, version string
	switch {
	case os.Getenv(hostVariable) != "":
		return 0, host()
	case os.Getenv(roomVariable) == "":
		return outside(ctx)
	}
	if _, err := fmt.Sscan(os.Getenv(roomVariable), &version, &path); err != nil {
		return 1, fmt.Errorf("%s is for this program alone, unset it: %w", roomVariable, err)
	}
	if err := enterRoom(path); err != nil {
		return 1, err
	}
	return 0, errors.Join(tell(ctx, os.Stdout, o, version), ctx.Err())
}

// outside prepares what needs the machine, and starts the program again in a room of its own.
func outside(ctx context.Context) (code int, err error) {
	if err := checkTools(); err != nil {
		return 2, err
	}
	path, version, err := buildFlanneld(ctx)
	if err != nil {
		return 1, err
	}
	// Pdeathsig is about the thread that starts the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), roomVariable+"="+version+" "+path)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: ownNamespaces, Pdeathsig: unix.SIGKILL}
	if err := cmd.Start(); errors.Is(err, unix.EPERM) {
		return 2, missing{"namespaces need CAP_SYS_ADMIN, which this root does not have: run it on a machine, or in a privileged container"}
	} else if err != nil {
		return 1, err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(unix.SIGTERM) }) // or it has ended
	defer stop()
	err = cmd.Wait()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return max(exit.ExitCode(), 1), nil
	}
	return 0, err
}

const ownNamespaces = unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET

// enterRoom covers the directories that the room uses, and lays the wire.
func enterRoom(program string) error {
	if os.Getpid() != 1 {
		return fmt.Errorf("%s is for this program alone: unset it", roomVariable)
	}
	if err := ownMounts(); err != nil {
		return err
	}
	// Before its directory may be covered.
	file, err := unix.OpenTree(unix.AT_FDCWD, program, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("open %s: %w", program, err)
	}
	defer unix.Close(file)
	if err := errors.Join(tmpfs(workDir), tmpfs("/run"), systemd()); err != nil {
		return err
	}
	if err := os.WriteFile(flanneld, nil, 0o755); err != nil {
		return err
	}
	if err := unix.MoveMount(file, "", unix.AT_FDCWD, flanneld, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount %s: %w", flanneld, err)
	}
	if err := checkKernel(); err != nil {
		return err
	}
	return layWire()
}

// ownMounts makes the mounts of a new namespace private, with a /proc of its processes.
func ownMounts() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	return nil
}

func tmpfs(dir string) error {
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return fmt.Errorf("mount a tmpfs on %s: %w", dir, err)
	}
	return nil
}

// systemd makes the directory by which etcd 3.4 knows that somebody waits for it.
func systemd() error { return os.MkdirAll("/run/systemd/system", 0o755) }

// checkKernel returns an error that names what the kernel does not have.
func checkKernel() error {
	tunnel := &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "try"}, VxlanId: 1, Port: 8472}
	err := netlink.LinkAdd(tunnel)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return missing{"the kernel has no VXLAN: modprobe vxlan, or CONFIG_VXLAN"}
	}
	if err == nil {
		err = netlink.LinkDel(tunnel)
	}
	if err != nil {
		return fmt.Errorf("try VXLAN: %w", err)
	}
	if out, err := exec.Command("nft", "list", "ruleset").CombinedOutput(); err != nil {
		return missing{fmt.Sprintf("the kernel has no nf_tables (nft: %s): modprobe nf_tables, or CONFIG_NF_TABLES", out)}
	}
	return nil
}

// layWire makes the bridge to which the hosts are plugged. etcd listens at its address.
func layWire() error {
	snooping := false // groups of multicast are for routers, and this wire has none
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: wire}, MulticastSnooping: &snooping}
	if err := netlink.LinkAdd(bridge); errors.Is(err, unix.EOPNOTSUPP) {
		return missing{"the kernel has no bridges: modprobe bridge, or CONFIG_BRIDGE"}
	} else if err != nil {
		return fmt.Errorf("make bridge %s: %w", wire, err)
	}
	return bringUp(wire, 0)
}

// bringUp brings lo up, and gives an interface the addresses of a host.
func bringUp(name string, number int) error {
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find %s: %w", name, err)
	}
	for _, prefix := range []netip.Prefix{netip.PrefixFrom(address(number), 24), netip.PrefixFrom(address6(number), 64)} {
		ip := &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())}
		// Nobody else can have it, so that it needs no detection of duplicates.
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: ip, Flags: unix.IFA_F_NODAD}); err != nil {
			return fmt.Errorf("address %s of %s: %w", prefix, name, err)
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("bring %s up: %w", name, err)
	}
	return nil
}
