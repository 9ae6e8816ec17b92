package main

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

// install gets all that the program needs on a fresh Debian with Go.
const install = "apt-get install etcd-server iptables nftables gcc libc6-dev"

// checkTools returns an error that names the missing tools.
func checkTools() error {
	if os.Geteuid() != 0 {
		return missing{"hosts that are namespaces need root: run it as root"}
	}
	tools := []string{"etcd", "nft", "iptables", "ip6tables"}
	if runtime.GOARCH == "amd64" && os.Getenv("CC") == "" {
		tools = append(tools, "gcc") // flanneld's udp backend is in C there
	}
	var absent []string
	for _, name := range tools {
		if _, err := exec.LookPath(name); err != nil {
			absent = append(absent, name)
		}
	}
	if len(absent) > 0 {
		return missing{"there is no " + strings.Join(absent, ", ") + " in PATH: " + install}
	}
	if _, err := exec.LookPath("go"); err != nil {
		return missing{"flanneld is built with the go command, which is not in PATH"}
	}
	return nil
}

const building = "building flanneld, with the clients of etcd and Kubernetes (some minutes, once) …\n"

// buildFlanneld returns the path of flanneld, built as flanneld/go.mod requires it, and its
// version. Go's build cache keeps the program, so that the next run finds it.
func buildFlanneld(ctx context.Context) (path, version string, err error) {
	slow := time.AfterFunc(3*time.Second, func() {
		fmt.Fprint(os.Stderr, building)
	})
	defer slow.Stop()
	cmd := exec.CommandContext(ctx, "go", "-C", "flanneld", "tool", "-n", "github.com/flannel-io/flannel")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return "", "", fmt.Errorf("build flanneld: %w", err)
	}
	path = strings.TrimSpace(string(out))
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return "", "", err
	}
	for _, module := range info.Deps {
		if module.Path == "github.com/flannel-io/flannel" {
			return path, module.Version, nil
		}
	}
	if info.Main.Version == "" {
		return "", "", errors.New("flanneld does not say its version")
	}
	return path, info.Main.Version, nil
}
