package storm

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/scripted"
)

// Variables of the environment. The first has the directory of the programs, for the process
// in the namespaces; the second marks its child, which runs the tests.
const (
	programsVariable = "EMBEDCNI_STORM_PROGRAMS"
	testsVariable    = "EMBEDCNI_STORM_TESTS"
)

// TestMain runs the tests in mount, network and process namespaces of their own. containerd
// needs the machine's root, which a user namespace does not have. Process 1 only adopts.
func TestMain(m *testing.M) {
	flag.Parse()
	programs := os.Getenv(programsVariable)
	switch {
	case scripted.IsPlugin():
		scripted.Main()
	case os.Getenv(testsVariable) != "":
		os.Exit(m.Run())
	case programs != "":
		os.Exit(exitCode(adopt()))
	}
	os.Exit(exitCode(outside()))
}

func exitCode(err error) int {
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return max(exit.ExitCode(), 1)
	} else if err != nil {
		fmt.Fprintln(os.Stderr, "storm:", err)
		return 1
	}
	return 0
}

// outside builds the programs, and starts process 1.
func outside() error {
	if os.Geteuid() != 0 {
		return errors.New("containerd needs root")
	}
	dir, err := os.MkdirTemp("", "storm")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := build(dir); err != nil {
		return err
	}
	runtime.LockOSThread() // Pdeathsig is about the thread that starts the process
	cmd := again(programsVariable + "=" + dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET, Pdeathsig: unix.SIGKILL,
	}
	return cmd.Run()
}

func again(env string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), env)
	return cmd
}

// stamps are the versions of the two builds.
var stamps = []string{"storm-1", "storm-2"}

// build builds the shim, which is containerd's plugin loopback too, and the daemon twice.
func build(dir string) error {
	const shim = "embedcni-shim"
	plugins := filepath.Join(dir, "plugins")
	programs := [][]string{{filepath.Join(plugins, shim), "", shim}}
	for _, stamp := range stamps {
		programs = append(programs, []string{filepath.Join(dir, stamp), "-X main.release=" + stamp, "embedcnid"})
	}
	for _, p := range programs {
		cmd := exec.Command("go", "build", "-ldflags", "-s -w "+p[1], "-o", p[0], "github.com/embedcni/cni/thick/cmd/"+p[2])
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("go build: %w\n%s", err, out)
		}
	}
	return os.Symlink(shim, filepath.Join(plugins, "loopback"))
}

// adopt covers the directories of the machine that are used, starts the tests, and waits for
// all orphans.
func adopt() error {
	if os.Getpid() != 1 {
		return fmt.Errorf("%s is for this test alone: unset it", programsVariable)
	}
	if err := cover(); err != nil {
		return err
	}
	cmd := again(testsVariable + "=1")
	if err := cmd.Start(); err != nil {
		return err
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return err
		case pid == cmd.Process.Pid && status.ExitStatus() != 0:
			return fmt.Errorf("the tests have ended with %v", status)
		case pid == cmd.Process.Pid:
			return nil
		}
	}
}

// disk stays when the host reboots; what is below /run does not. The boot ID is a file there.
const (
	disk       = "/var/lib/storm"
	bootIDFile = disk + "/boot_id"
)

func cover() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	for _, m := range []struct{ kind, at string }{{"proc", "/proc"}, {"tmpfs", "/run"}, {"tmpfs", "/var/lib"}} {
		if err := unix.Mount(m.kind, m.at, m.kind, unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
			return fmt.Errorf("mount %s at %s: %w", m.kind, m.at, err)
		}
	}
	if err := errors.Join(os.MkdirAll(disk, 0o755), newBootID()); err != nil {
		return err
	}
	if err := unix.Mount(bootIDFile, "/proc/sys/kernel/random/boot_id", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount a boot ID: %w", err)
	}
	return removeCgroups(cgroups + "*") // of runs that were killed; one that runs keeps its own
}

func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}
