package iptables

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// LookPath finds a tool, also in the directories of administrators that the PATH
// of other users lacks.
func LookPath(tool string) (string, error) {
	path, err := exec.LookPath(tool)
	if err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} {
		if path, err := exec.LookPath(filepath.Join(dir, tool)); err == nil {
			return path, nil
		}
	}
	return "", err
}

// Detect finds the variant with the plain name, as executable plugins find it.
func (x *Tool) Detect(ctx context.Context) error {
	path, err := LookPath(x.Family)
	if err != nil {
		return fmt.Errorf(`the backend "iptables" needs the program %s: %w`, x.Family, err)
	}
	// A symbolic link shows the variant without starting a process.
	if real, err := filepath.EvalSymlinks(path); err == nil {
		switch name := filepath.Base(real); {
		case strings.Contains(name, "nft"):
			return nil
		case strings.Contains(name, "legacy"):
			x.Legacy = true
			return nil
		}
	}
	version, err := x.runTool(ctx, "", path, "--version")
	if err != nil {
		return err
	}
	x.Legacy = !strings.Contains(version, "(nf_tables)")
	return nil
}
