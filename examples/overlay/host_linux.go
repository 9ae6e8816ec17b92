package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/rpc"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// host is process 1 of a host. It serves the room until that hangs up.
func host() error {
	number, err := strconv.Atoi(os.Getenv(hostVariable))
	if err != nil || os.Getpid() != 1 {
		return fmt.Errorf("%s is for this program alone: unset it", hostVariable)
	}
	if err := ownDirectories(filepath.Join(workDir, fmt.Sprint("host-", number))); err != nil {
		return err
	}
	file := os.NewFile(3, "room")
	conn, err := net.FileConn(file)
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	server := rpc.NewServer()
	if err := server.Register(newAgent(number)); err != nil {
		return err
	}
	server.ServeConn(conn)
	return nil
}

// ownDirectories gives the host its disk, at /var/lib, and a /run that is empty after each start.
func ownDirectories(disk string) error {
	if err := ownMounts(); err != nil {
		return err
	}
	if err := unix.Mount(disk, "/var/lib", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s at /var/lib: %w", disk, err)
	}
	if err := errors.Join(tmpfs("/run"), systemd()); err != nil {
		return err
	}
	// By its boot ID the library knows that what ran before is dead.
	const bootID, own = "/proc/sys/kernel/random/boot_id", "/run/boot_id"
	if err := os.WriteFile(own, []byte(rand.Text()+"\n"), 0o444); err != nil {
		return err
	}
	if err := unix.Mount(own, bootID, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount a boot ID: %w", err)
	}
	return nil
}
