package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

var errNotInstalled = errors.New("not installed")

// netavark is Podman's executable, which has a protocol of its own.
type netavark struct {
	spec    spec
	program string
}

func newNetavark(s spec) (attacher, error) {
	program, err := findNetavark()
	if err != nil {
		return nil, err
	}
	return &netavark{spec: s, program: program}, nil
}

// findNetavark searches the directories that distributions use. They are not in
// PATH.
func findNetavark() (string, error) {
	for _, dir := range slices.Concat([]string{"/usr/lib/podman", "/usr/libexec/podman"}, filepath.SplitList(os.Getenv("PATH"))) {
		path := filepath.Join(dir, "netavark")
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("netavark: %w", errNotInstalled)
}

func (n *netavark) run(ctx context.Context, verb string, c container) error {
	conf, err := netavarkConfig(n.spec.Work, c.ID, c.Network, c.N, c.Port)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, n.program, "--config", filepath.Join(n.spec.RunDir, "netavark"), verb, c.Path)
	cmd.Stdin = strings.NewReader(string(conf))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("netavark %s: %w: %s", verb, err, out)
	}
	return nil
}

func (n *netavark) add(ctx context.Context, c container) error { return n.run(ctx, "setup", c) }
func (n *netavark) del(ctx context.Context, c container) error { return n.run(ctx, "teardown", c) }
func (*netavark) close() error                                 { return nil }
