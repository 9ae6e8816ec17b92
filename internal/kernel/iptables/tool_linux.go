package iptables

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/embedcni/cni/internal/kernel/nft"
)

// Tool is a variant of iptables for one family. Its processes run in the network
// namespace of the calling thread, which is also that of Sockets.
type Tool struct {
	Family  string // "iptables", "ip6tables"
	Legacy  bool
	Sockets nft.Sockets
	Held    *os.File // open in all processes that it starts; nil: none is
}

// Variants returns the tools of both variants of both families.
func Variants(sockets nft.Sockets, held *os.File) (all []Tool) {
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, legacy := range []bool{false, true} {
			all = append(all, Tool{family, legacy, sockets, held})
		}
	}
	return all
}

// V6 reports whether the tool is for IPv6.
func (x Tool) V6() bool { return x.Family == "ip6tables" }

// Name returns the name of the tool: "ip6tables-legacy".
func (x Tool) Name() string {
	if x.Legacy {
		return x.Family + "-legacy"
	}
	return x.Family + "-nft"
}

// Restore applies the input of iptables-restore --noflush, each table's part as
// a whole or not at all.
func (x Tool) Restore(ctx context.Context, text string) error {
	args := []string{"--noflush"}
	if x.Legacy {
		args = append(args, "--wait") // for /run/xtables.lock, until the context ends
	}
	_, err := x.Run(ctx, text, "restore", args...)
	return err
}

// Table returns a table of the nf_tables variant.
func (x Tool) Table(name string) nft.Table {
	if x.V6() {
		return nft.Table{Family: nft.FamilyIPv6, Name: name}
	}
	return nft.Table{Family: nft.FamilyIPv4, Name: name}
}

// outputDelay limits the time from the end of a process until its output has been
// read. That takes seconds on an overloaded machine. The limit is for the children of a
// killed process, at most a modprobe, which can hold the output open.
const outputDelay = 5 * time.Second

// Run runs the tool for a purpose, "save" or "restore", and returns its output.
func (x Tool) Run(ctx context.Context, stdin, purpose string, args ...string) (string, error) {
	path, err := x.Path(ctx, purpose)
	if err != nil {
		return "", err
	}
	return x.runTool(ctx, stdin, path, args...)
}

func (x Tool) runTool(ctx context.Context, stdin, path string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.WaitDelay = outputDelay
	if x.Held != nil {
		cmd.ExtraFiles = []*os.File{x.Held}
	}
	// The process dies with the thread that starts it, so the thread must stay
	// until it has ended.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var stdout, stderr strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	err := cmd.Run()
	if err == nil || errors.Is(err, syscall.ECHILD) && isWhole(stdout.String()) {
		return stdout.String(), nil
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	const most = 1000 // enough for a line that a person reads
	said := strings.Join(strings.FieldsFunc(stderr.String(), func(r rune) bool { return r == '\n' }), "; ")
	if said = strings.TrimSpace(said); said == "" {
		return "", fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return "", fmt.Errorf("%s: %w: %s", filepath.Base(path), err, said[:min(len(said), most)])
}

// isWhole reports whether the output is that of a successful tool. It decides
// when the exit status is lost because the program reaps all its children. A
// restore prints nothing, so its effect is verified instead.
//
//	# Completed on Sat Nov 22 01:00:00 2026
//	iptables v1.8.9 (nf_tables)
func isWhole(out string) bool {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	last := lines[len(lines)-1]
	return strings.HasPrefix(last, "# Completed on ") || strings.Contains(last, "tables v")
}

// Path returns the variant's tool for a purpose, or its main program. If only one variant is installed, it
// may have the plain name only.
func (x Tool) Path(ctx context.Context, purpose string) (string, error) {
	suffix := ""
	if purpose != "" {
		suffix = "-" + purpose
	}
	path, err := LookPath(x.Name() + suffix)
	if err == nil {
		return path, nil
	}
	plain := Tool{Family: x.Family, Held: x.Held}
	switch plainErr := plain.Detect(ctx); {
	case errors.Is(plainErr, exec.ErrNotFound), plainErr == nil && plain.Legacy != x.Legacy:
		return "", err
	case plainErr != nil:
		return "", plainErr
	}
	return LookPath(x.Family + suffix)
}
