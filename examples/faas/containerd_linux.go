package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/containerd/containerd"
	"github.com/containerd/containerd/namespaces"
	"golang.org/x/sys/unix"
)

// install gets all that the program needs on a fresh Debian.
const install = "apt-get install containerd runc busybox-static nftables"

const (
	socket      = workDir + "/containerd.sock"
	snapshotter = "native" // works on every file system

	// config keeps everything of containerd below workDir. The CRI plugin would look for
	// networks of its own.
	config = `version = 2
root = "` + workDir + `/containerd/root"
state = "` + workDir + `/containerd/state"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
  address = "` + socket + `"
`
)

// daemon is a running containerd.
type daemon struct {
	cmd     *exec.Cmd
	log     *bytes.Buffer
	client  *containerd.Client
	version string
}

// startContainerd starts Debian's containerd and connects to it.
func startContainerd(ctx context.Context) (d *daemon, err error) {
	for _, name := range []string{"containerd", "runc", "nft"} { // the audit sees rules with nft
		if _, err := exec.LookPath(name); err != nil {
			return nil, fmt.Errorf("%w: %s", err, install)
		}
	}
	file := filepath.Join(workDir, "containerd.toml")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		return nil, err
	}
	d = &daemon{cmd: exec.Command("containerd", "--config", file), log: &bytes.Buffer{}}
	d.cmd.Stdout, d.cmd.Stderr = d.log, d.log
	// Ctrl-C at the terminal is for this program, which stops it.
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := d.cmd.Start(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%w; its log:\n%s", err, d.log), d.stop())
		}
	}()
	d.client, err = containerd.New(socket, containerd.WithDefaultNamespace("faas"), containerd.WithTimeout(10*time.Second))
	if err != nil {
		return nil, err
	}
	v, err := d.client.Version(namespaces.WithNamespace(ctx, "faas"))
	if err != nil {
		return nil, err
	}
	d.version = v.Version
	return d, nil
}

// stop ends containerd. Its tasks have been deleted.
func (d *daemon) stop() error {
	var errs []error
	if d.client != nil {
		errs = append(errs, d.client.Close())
	}
	errs = append(errs, d.cmd.Process.Signal(unix.SIGTERM))
	if err := d.cmd.Wait(); err != nil && d.cmd.ProcessState.ExitCode() != 0 {
		errs = append(errs, fmt.Errorf("containerd: %w; its log:\n%s", err, d.log))
	}
	return errors.Join(errs...)
}
