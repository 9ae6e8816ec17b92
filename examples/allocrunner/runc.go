package main

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// runc runs containers of busybox. Its files are below dir; the containers are in
// cgroups below cgroup.
type runc struct{ dir, cgroup string }

func (r runc) rootfs() string          { return filepath.Join(r.dir, "rootfs") }
func (r runc) bundle(id string) string { return filepath.Join(r.dir, "allocs", id) }

// install makes the root directory that all containers share: busybox, which must be
// linked statically, under the names of programs.
func (r runc) install() error {
	if _, err := exec.LookPath("runc"); err != nil {
		return missing("runc", err)
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return missing("busybox-static", err)
	}
	if err := isStatic(busybox); err != nil {
		return missing("busybox-static", err)
	}
	for _, dir := range []string{"bin", "proc", "dev", "tmp", "www"} {
		if err := os.MkdirAll(filepath.Join(r.rootfs(), dir), 0o755); err != nil {
			return err
		}
	}
	target := filepath.Join(r.rootfs(), "bin", "busybox")
	if err := copyFile(busybox, target, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"sh", "httpd", "sleep"} {
		if err := os.Symlink("busybox", filepath.Join(r.rootfs(), "bin", name)); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}

// missing explains how to install a Debian package.
func missing(pkg string, err error) error {
	return fmt.Errorf("%w: run `apt-get install %s`", err, strings.Join(debianPackages, " "))
}

// debianPackages is all that the program needs on a fresh Debian.
var debianPackages = []string{"runc", "busybox-static", "nftables"}

// isStatic returns an error if an executable needs a dynamic linker, which containers
// lack.
func isStatic(path string) error {
	f, err := elf.Open(path)
	if err != nil {
		return err
	}
	defer f.Close() // was only read
	if slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return fmt.Errorf("%s is not linked statically", path)
	}
	return nil
}

// copyFile replaces the file at to, which may be running.
func copyFile(from, to string, mode os.FileMode) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close() // was only read
	out, err := os.OpenFile(to+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	if _, err = io.Copy(out, in); err == nil {
		err = os.Rename(out.Name(), to)
	}
	return errors.Join(err, out.Close())
}

// run starts a container in a network namespace. It writes the container's ID to
// /www/index.html.
func (r runc) run(ctx context.Context, a allocation, netNS string) error {
	dir := r.bundle(a.ID)
	www := filepath.Join(dir, "www")
	if err := os.MkdirAll(www, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(www, "index.html"), []byte(a.ID), 0o644); err != nil {
		return err
	}
	spec, err := json.MarshalIndent(r.spec(a, netNS, www), "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), spec, 0o644); err != nil {
		return err
	}
	// What the container prints; runc leaves it the file.
	console, err := os.OpenFile(filepath.Join(dir, "console.log"), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	cmd := r.command(ctx, "run", "--detach", "--bundle", dir, a.ID)
	cmd.Stdout, cmd.Stderr = console, console
	err = cmd.Run()
	if err = errors.Join(err, console.Close()); err != nil {
		said, _ := os.ReadFile(console.Name()) // the error is reported anyway
		return fmt.Errorf("runc run %s: %w: %s", a.ID, err, bytes.TrimSpace(said))
	}
	return nil
}

// spec is a container's config.json, as the OCI runtime specification has it.
func (r runc) spec(a allocation, netNS, www string) map[string]any {
	type object = map[string]any
	capabilities := []string{"CAP_NET_BIND_SERVICE"}
	return object{
		"ociVersion": "1.0.2",
		"hostname":   a.ID,
		"process": object{
			"user": object{"uid": 0, "gid": 0}, "cwd": "/", "env": []string{"PATH=/bin"},
			"args": a.Job.Args, "noNewPrivileges": true,
			"capabilities": object{"bounding": capabilities, "effective": capabilities, "permitted": capabilities},
		},
		"root": object{"path": r.rootfs(), "readonly": true},
		"mounts": []object{
			{"destination": "/proc", "type": "proc", "source": "proc"},
			{"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": []string{"nosuid", "mode=755", "size=64k"}},
			{"destination": "/www", "type": "bind", "source": www, "options": []string{"bind", "ro"}},
		},
		"linux": object{
			"cgroupsPath": "/" + r.cgroup + "/" + a.ID,
			"namespaces": []object{
				{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}, {"type": "network", "path": netNS},
			},
		},
	}
}

// task is a container as runc lists it.
type task struct {
	ID     string `json:"id"`
	PID    int    `json:"pid"`
	Status string `json:"status"`
}

// list returns all containers, by ID.
func (r runc) list(ctx context.Context) (map[string]task, error) {
	cmd := r.command(ctx, "list", "--format", "json")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("runc list: %w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	var tasks []task
	if err := json.Unmarshal(out, &tasks); err != nil { // null if there is none
		return nil, fmt.Errorf("runc list: %w", err)
	}
	all := make(map[string]task, len(tasks))
	for _, t := range tasks {
		all[t.ID] = t
	}
	return all, nil
}

// delete ends a container, if there is one, and deletes its files.
func (r runc) delete(ctx context.Context, id string) error {
	out, err := r.command(ctx, "delete", "--force", id).CombinedOutput() // without the container it succeeds
	if err != nil {
		return fmt.Errorf("runc delete %s: %w: %s", id, err, bytes.TrimSpace(out))
	}
	return os.RemoveAll(r.bundle(id))
}

func (r runc) command(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "runc", append([]string{"--root", filepath.Join(r.dir, "runc")}, args...)...)
}
