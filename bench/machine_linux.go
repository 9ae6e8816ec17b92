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
func describe(ctx context.Context, dir string) (machine, error) {
	var memory unix.Sysinfo_t
	if err := unix.Sysinfo(&memory); err != nil {
		return machine{}, err
	}
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return machine{}, err
	}
	cpu := "unknown" // some architectures do not name their processors
	if _, rest, ok := strings.Cut(string(info), "model name"); ok {
		line, _, _ := strings.Cut(rest, "\n")
		cpu = strings.TrimLeft(line, "\t :")
	}
	release, _, _ := strings.Cut(printed(ctx, "uname", "-r"), "-")
	return machine{Kernel: release, CPU: cpu, Cores: runtime.NumCPU(), Go: runtime.Version(),
		Memory:     fmt.Sprintf("%d GiB", (memory.Totalram*uint64(memory.Unit)+1<<29)>>30),
		FileSystem: printed(ctx, "stat", "-f", "-c", "%T", dir)}, nil
}

// printed returns what a program prints, or nothing if there is no such program.
func printed(ctx context.Context, program string, args ...string) string {
	out, _ := exec.CommandContext(ctx, program, args...).Output() // it is there or not
	return strings.TrimSpace(string(out))
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
	netavark, _ := findNetavark() // nothing prints nothing
	for name, program := range map[string]string{"iptables": "iptables", "nft": "nft", "netavark": netavark} {
		if version := printed(ctx, program, "--version"); version != "" {
			found[name] = strings.TrimPrefix(version, name+" ")
		}
	}
	return found
}
