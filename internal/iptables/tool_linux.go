package iptables

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/embedcni/cni/internal/nft"
)

// Tool is a variant of iptables for one family. Its processes run in the network
// namespace of the calling thread, which is also that of Sockets.
type Tool struct {
	Family  string // "iptables", "ip6tables"
	Legacy  bool
	Sockets nft.Sockets
	Held    []*os.File // open in all processes that it starts
}

// Variants returns the tools of both variants of both families. held is open in all
// processes that they start; nil: none is.
func Variants(sockets nft.Sockets, held *os.File) (all []Tool) {
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, legacy := range []bool{false, true} {
			x := Tool{Family: family, Legacy: legacy, Sockets: sockets}
			if held != nil {
				x.Held = []*os.File{held}
			}
			all = append(all, x)
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

// Save returns the output of iptables-save if one of the chains exists, and may
// return nothing if none does. With an error, the output is incomplete.
func (x Tool) Save(ctx context.Context, chains []ChainID) (string, error) {
	// Look first: otherwise a missing tool would be an error where there is
	// nothing to delete, and an installed one would create its tables.
	if x.Legacy {
		return x.saveLegacy(ctx, chains)
	}
	before, err := x.nftHas(ctx, chains)
	if err != nil || len(before) == 0 {
		return "", err
	}
	out, err := x.Run(ctx, "", "save")
	if err != nil {
		return "", err
	}
	return out, x.checkComplete(ctx, out, before)
}

// ErrHidden means that rules exist that the tool does not show.
var ErrHidden = errors.New("the tool does not show the chain, probably because its table has rules that nft has made")

// checkComplete fails if one of the chains exists but is not in the output: the
// tool leaves out a table with a rule that it cannot express, with only a
// warning and exit status 0.
func (x Tool) checkComplete(ctx context.Context, out string, chains []ChainID) error {
	hidden := slices.DeleteFunc(chains, func(id ChainID) bool { return strings.Contains("\n"+out, "\n*"+id.Table+"\n") })
	if len(hidden) == 0 {
		return nil
	}
	// Another process may have deleted it before the tool looked.
	hidden, err := x.nftHas(ctx, hidden)
	if err == nil && len(hidden) > 0 {
		err = fmt.Errorf("table %s, chain %s: %w", hidden[0].Table, hidden[0].Chain, ErrHidden)
	}
	return err
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

// nftHas asks the kernel which of the chains exist: the nf_tables variant keeps
// its chains in tables of the same names.
func (x Tool) nftHas(ctx context.Context, chains []ChainID) (found []ChainID, err error) {
	exist, err := x.Exist(ctx, chains)
	if errors.Is(err, nft.ErrNotSupported) {
		return nil, nil
	}
	for i, id := range chains {
		if err == nil && exist[i] {
			found = append(found, id)
		}
	}
	return found, err
}

// Exist reports, in order, which of the chains the nf_tables variant has.
func (x Tool) Exist(ctx context.Context, chains []ChainID) (exist []bool, err error) {
	err = x.Sockets.Do(ctx, func(c *nft.Conn) error {
		exist, err = c.Exist(x.nftFamily(), chains...)
		return err
	})
	return exist, err
}

// nftFamily returns the family of the nf_tables variant's tables.
func (x Tool) nftFamily() uint8 {
	if x.V6() {
		return nft.FamilyIPv6
	}
	return nft.FamilyIPv4
}

// Table returns a table of the nf_tables variant.
func (x Tool) Table(name string) nft.Table { return nft.Table{Family: x.nftFamily(), Name: name} }

// outputDelay limits the time from the end of a process until its output has been
// read. That takes seconds on an overloaded machine. The limit is for the children of a
// killed process, at most a modprobe, which can hold the output open.
const outputDelay = 5 * time.Second

// Run runs the tool for a purpose, "save" or "restore", and returns its output.
func (x Tool) Run(ctx context.Context, stdin, purpose string, args ...string) (string, error) {
	path, err := x.lookPath(ctx, purpose)
	if err != nil {
		return "", err
	}
	return x.runTool(ctx, stdin, path, args...)
}

func (x Tool) runTool(ctx context.Context, stdin, path string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.WaitDelay = outputDelay
	cmd.ExtraFiles = x.Held
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

// Path returns the variant's main program.
func (x Tool) Path(ctx context.Context) (string, error) { return x.lookPath(ctx, "") }

// lookPath returns the variant's tool for a purpose. If only one variant is installed, it
// may have the plain name only.
func (x Tool) lookPath(ctx context.Context, purpose string) (string, error) {
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

// Rules lists a chain of the nf_tables variant, like [nft.Conn.Rules].
func (x Tool) Rules(ctx context.Context, id ChainID, containing [][]byte, each func(nft.Rule) error) error {
	return x.Sockets.Do(ctx, func(c *nft.Conn) error {
		return c.Rules(x.Table(id.Table), id.Chain, containing, each)
	})
}
