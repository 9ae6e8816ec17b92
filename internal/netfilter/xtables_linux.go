package netfilter

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

// xtables are the iptables tools of a family and a variant, in the network
// namespace of the calling thread.
//
// It starts them itself, as go-iptables starts one process for each chain that
// is listed and each rule that is deleted, cannot be stopped by a context, and
// knows no iptables-restore.
type xtables struct {
	fw     *Firewalls
	family string // "iptables", "ip6tables"
	legacy bool

	lockFile string // that legacy tools lock; "" is theirs
}

func (x xtables) v6() bool { return x.family == "ip6tables" }

func (x xtables) name() string {
	if x.legacy {
		return x.family + "-legacy"
	}
	return x.family + "-nft"
}

func (x xtables) save(ctx context.Context, chains []chainID) (string, error) {
	// Without a look before, a tool that is missing would be a reason to fail
	// where there is nothing to delete; and one that is there would make its
	// tables.
	if x.legacy {
		return x.saveLegacy(ctx, chains)
	}
	before, err := x.nftHas(ctx, chains)
	if err != nil || len(before) == 0 {
		return "", err
	}
	out, err := x.run(ctx, "", "save")
	if err != nil {
		return "", err
	}
	return out, x.checkComplete(ctx, out, before)
}

// errHidden means that rules are there, and the tool does not show them.
var errHidden = errors.New("the tool does not show the chain, most likely as its table has rules of nft's")

// checkComplete fails if one of the chains is there and not in the output: the
// tool leaves out a table with a rule that it cannot put into words, with no
// more than a remark and the exit status 0.
func (x xtables) checkComplete(ctx context.Context, out string, chains []chainID) error {
	sets, err := parseSave(out)
	if err != nil {
		return err
	}
	shown := make(map[chainID]bool)
	for _, s := range sets {
		for name := range s.chains {
			shown[chainID{s.table, name}] = true
		}
	}
	hidden := slices.DeleteFunc(chains, func(id chainID) bool { return shown[id] })
	if len(hidden) == 0 {
		return nil
	}
	// Another one may have deleted it before the tool looked.
	hidden, err = x.nftHas(ctx, hidden)
	if err == nil && len(hidden) > 0 {
		err = fmt.Errorf("table %s, chain %s: %w", hidden[0].table, hidden[0].chain, errHidden)
	}
	return err
}

func (x xtables) restore(ctx context.Context, text string) error {
	args := []string{"--noflush"}
	if x.legacy {
		args = append(args, "--wait") // for /run/xtables.lock, until the context ends
	}
	_, err := x.run(ctx, text, "restore", args...)
	return err
}

// nftHas asks the kernel which of the chains exist: the nf_tables variant has its
// chains in tables of the same names.
func (x xtables) nftHas(ctx context.Context, chains []chainID) (found []chainID, err error) {
	exist, err := x.exist(ctx, chains)
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

// exist reports, in order, which of the chains the nf_tables variant has.
func (x xtables) exist(ctx context.Context, chains []chainID) (exist []bool, err error) {
	err = x.fw.onSocket(ctx, func(c *nft.Conn) error {
		_, exist, err = c.Exist(x.nftFamily(), nftChains(chains)...)
		return err
	})
	return exist, err
}

func nftChains(ids []chainID) []nft.Chain {
	chains := make([]nft.Chain, len(ids))
	for i, id := range ids {
		chains[i] = nft.Chain{Table: id.table, Name: id.chain}
	}
	return chains
}

// nftFamily is the family of the tables that the nf_tables variant has.
func (x xtables) nftFamily() uint8 {
	if x.v6() {
		return nft.FamilyIPv6
	}
	return nft.FamilyIPv4
}

// nftTable is a table of the nf_tables variant.
func (x xtables) nftTable(name string) nft.Table { return nft.Table{Family: x.nftFamily(), Name: name} }

// killDelay is how long a process that was killed may hold its output open by
// what it has started, a modprobe at most.
const killDelay = 500 * time.Millisecond

// run runs the tool of that purpose, "save" or "restore", and returns what it
// prints.
func (x xtables) run(ctx context.Context, stdin, purpose string, args ...string) (string, error) {
	path, err := x.lookPath(ctx, purpose)
	if err != nil {
		return "", err
	}
	return x.runTool(ctx, stdin, path, args...)
}

func (x xtables) runTool(ctx context.Context, stdin, path string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.WaitDelay = killDelay
	cmd.ExtraFiles, cmd.Env = x.held(), x.env()
	// It dies with the thread that starts it, which is to stay until it has ended.
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
	const most = 1000 // as much as anyone reads in a line
	said := strings.Join(strings.FieldsFunc(stderr.String(), func(r rune) bool { return r == '\n' }), "; ")
	if said = strings.TrimSpace(said); said == "" {
		return "", fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return "", fmt.Errorf("%s: %w: %s", filepath.Base(path), err, said[:min(len(said), most)])
}

func (x xtables) held() []*os.File {
	if x.fw.Held == nil {
		return nil
	}
	return []*os.File{x.fw.Held}
}

// isWhole reports whether a tool has printed all that it prints when it succeeds,
// where its exit status is lost because the program reaps all its children. A
// restore prints nothing: its effect is looked for.
//
//	# Completed on Sat Nov 22 01:00:00 2026
//	iptables v1.8.9 (nf_tables)
func isWhole(out string) bool {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	last := lines[len(lines)-1]
	return strings.HasPrefix(last, "# Completed on ") || strings.Contains(last, "tables v")
}

// lookPath returns the tool of the variant. Where there is but one variant, it
// can have the plain name only.
func (x xtables) lookPath(ctx context.Context, purpose string) (string, error) {
	path, err := lookPath(x.name() + "-" + purpose)
	if err == nil {
		return path, nil
	}
	plain, plainErr := lookPath(x.family)
	if plainErr != nil {
		return "", err
	}
	version, versionErr := x.runTool(ctx, "", plain, "--version")
	if versionErr != nil {
		return "", versionErr
	}
	if strings.Contains(version, "(nf_tables)") == x.legacy {
		return "", err
	}
	return lookPath(x.family + "-" + purpose)
}

// lookPath also looks where the tools are when PATH, like that of Debian's
// users, does not say so.
func lookPath(tool string) (string, error) {
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
