package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"
)

// describe describes the machine without its name.
func describe(dir string) (machine, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return machine{}, err
	}
	cpu, err := field("/proc/cpuinfo", "model name")
	if err != nil {
		return machine{}, err
	}
	memory, err := field("/proc/meminfo", "MemTotal")
	if err != nil {
		return machine{}, err
	}
	var kB int64
	if _, err := fmt.Sscan(memory, &kB); err != nil {
		return machine{}, fmt.Errorf("MemTotal %q: %w", memory, err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return machine{}, err
	}
	release, _, _ := strings.Cut(unix.ByteSliceToString(name.Release[:]), "-")
	return machine{
		Kernel: release, CPU: cpu, Cores: runtime.NumCPU(), Memory: fmt.Sprintf("%d GiB", (kB+1<<19)>>20),
		FileSystem: fileSystem(int64(fs.Type)), Go: runtime.Version(),
	}, nil
}

// field returns the first value in a file of lines "name : value".
func field(path, name string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(data)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value), nil
		}
	}
	return "unknown", nil // some architectures do not name their processors
}

// versions returns the versions of the compared programs.
func versions(ctx context.Context) map[string]string {
	found := make(map[string]string)
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			switch dep.Path {
			case "github.com/containerd/go-cni":
				found["go-cni"] = dep.Version
			case "github.com/containernetworking/plugins":
				found["reference plugins"] = dep.Version
			}
		}
	}
	for name, args := range map[string][]string{"iptables": {"iptables", "--version"}, "nft": {"nft", "--version"}} {
		if out, err := exec.CommandContext(ctx, args[0], args[1:]...).Output(); err == nil {
			found[name] = strings.TrimPrefix(strings.TrimSpace(string(out)), args[0]+" ")
		}
	}
	if program, err := findNetavark(); err == nil {
		if out, err := exec.CommandContext(ctx, program, "--version").Output(); err == nil {
			found["netavark"] = strings.TrimPrefix(strings.TrimSpace(string(out)), "netavark ")
		}
	}
	return found
}

func fileSystem(magic int64) string {
	names := map[int64]string{unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs",
		unix.OVERLAYFS_SUPER_MAGIC: "overlayfs", unix.TMPFS_MAGIC: "tmpfs"}
	if name, ok := names[magic]; ok {
		return name
	}
	return fmt.Sprintf("file system %#x", magic)
}
