package netfilter

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/iptables"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
)

// TestIPTablesManyAtOnceShareTheSharedRules: many concurrent containers, the
// first of which make the shared rules.
func TestIPTablesManyAtOnceShareTheSharedRules(t *testing.T) {
	eachVariant(t, func(t *testing.T, h *host, fw *Firewalls) {
		const n = 8
		each := func(fn func(i int) error) {
			t.Helper()
			errs := make([]error, n)
			var wg sync.WaitGroup
			for i := range n {
				wg.Add(1)
				go func() { defer wg.Done(); errs[i] = fn(i) }()
			}
			wg.Wait()
			must(t, errors.Join(errs...))
		}
		rules := func(i int) fwrules.Rules { return everything(fmt.Sprint("c", i), 4+i) }
		each(func(i int) error { return fw.Add(t.Context(), fwrules.IPTables, rules(i)) })
		lines := h.filters()
		if once := slices.Compact(slices.Clone(lines)); len(once) != len(lines) {
			t.Errorf("something is there twice:\n%s", strings.Join(lines, "\n"))
		}
		each(func(i int) error { return fw.Check(t.Context(), fwrules.IPTables, rules(i)) })
		each(func(i int) error { return fw.Remove(t.Context(), fwrules.IPTables, rules(i)) })
		wantLines(t, "after all DELs", h.filters().Without(audit.Shared), nil)
	})
}

// addVariable makes a process add the rules of the container that it names, in
// the namespace that it is started in, instead of running tests.
const addVariable = "TEST_ADD"

func addInProcess(id string) int {
	err := Open(nil, Options{}).Add(context.Background(), fwrules.IPTables, everything(id, int(id[1])))
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// TestIPTablesProcessesShareTheSharedRules is the same with several processes,
// which share only the namespace.
func TestIPTablesProcessesShareTheSharedRules(t *testing.T) {
	eachVariant(t, func(t *testing.T, h *host, fw *Firewalls) {
		var wg sync.WaitGroup
		var commands []*exec.Cmd
		for i := range 4 {
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), fmt.Sprint(addVariable, "=p", i))
			commands = append(commands, cmd)
		}
		outputs, errs := make([][]byte, len(commands)), make([]error, len(commands))
		for i, cmd := range commands {
			wg.Add(1)
			go func() {
				defer wg.Done()
				errs[i] = h.ns.Do(func() (err error) {
					outputs[i], err = cmd.CombinedOutput()
					return err
				})
			}()
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatalf("%v: %s", err, slices.Concat(outputs...))
		}
		lines := h.filters()
		if once := slices.Compact(slices.Clone(lines)); len(once) != len(lines) {
			t.Errorf("something is there twice:\n%s", strings.Join(lines, "\n"))
		}
		for i := range commands {
			id := fmt.Sprint("p", i)
			must(t, fw.Check(t.Context(), fwrules.IPTables, everything(id, int(id[1]))))
		}
	})
}

// TestIPTablesAddsAllOrNothing: refused rules are reported with iptables's
// message, and none of the others stay.
func TestIPTablesAddsAllOrNothing(t *testing.T) {
	eachVariant(t, func(t *testing.T, h *host, fw *Firewalls) {
		must(t, fw.Add(t.Context(), fwrules.IPTables, everything("c0", 3)))
		before := h.filters()
		tests := map[string]struct {
			spoil func(*fwrules.Rules)
			want  string
		}{
			"a condition": {func(r *fwrules.Rules) { r.HostPorts[0].ConditionsV6 = []string{"--no-such-option"} }, "--no-such-option"},
			"a chain":     {func(r *fwrules.Rules) { r.HostPorts[0].ExternalSetMarkChain = "NO-SUCH-CHAIN" }, "NO-SUCH-CHAIN"},
			"a line feed": {func(r *fwrules.Rules) { r.HostPorts[0].ConditionsV6 = []string{"-m", "comment", "--comment", "x\n-F"} }, iptables.ErrLineFeed.Error()},
			"an admin chain": {func(r *fwrules.Rules) {
				r.Forward[0].AdminChain = strings.Repeat("TOO-LONG-", 30)
			}, "TOO-LONG"},
		}
		for name, tt := range tests {
			r := everything("c1", 4)
			tt.spoil(&r)
			err := fw.Add(t.Context(), fwrules.IPTables, r)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: error %v, want %s", name, err, tt.want)
			}
			wantLines(t, name, h.filters().Without(audit.Shared), before.Without(audit.Shared))
		}
	})
}

func TestIPTablesThatAreMissing(t *testing.T) {
	h := newHost(t, "nft")
	empty := t.TempDir()
	// The name exists, but its target does not.
	must(t, os.WriteFile(filepath.Join(empty, "iptables"), []byte("#!/bin/sh\necho broken >&2\nexit 3\n"), 0o755))
	t.Setenv("PATH", empty)
	err := Open(h.ns, Options{}).Add(t.Context(), fwrules.IPTables, onlyV4(everything("c1", 4)))
	if err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("error %v", err)
	}
	wantLines(t, "after it", h.filters(), nil)
}

// TestIPTablesWaitsForTheLockUntilTheContextEnds: the holder of legacy
// iptables's lock blocks others for as long as their context allows.
func TestIPTablesWaitsForTheLockUntilTheContextEnds(t *testing.T) {
	h := newHost(t, "legacy")
	fw := Open(h.ns, Options{})
	f, err := os.OpenFile("/run/xtables.lock", os.O_CREATE|os.O_RDWR, 0o600)
	must(t, err)
	defer f.Close()
	must(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	start := time.Now()
	err = fw.Add(ctx, fwrules.IPTables, onlyV4(everything("c1", 4)))
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	if waited := time.Since(start); waited > 15*time.Second {
		t.Errorf("waited %v", waited)
	}
	must(t, unix.Flock(int(f.Fd()), unix.LOCK_UN))
	must(t, fw.Remove(t.Context(), fwrules.IPTables, everything("c1", 4)))
	wantLines(t, "after it", h.filters().Without(audit.Shared), nil)
}

// TestLockNamespace: while one makes the shared rules, others who would make
// them wait, for as long as they may.
func TestLockNamespace(t *testing.T) {
	h := newHost(t, "nft")
	unlock, err := iptables.LockNamespace(t.Context())
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := iptables.LockNamespace(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a second one: %v", err)
	}
	if err := Open(h.ns, Options{}).Add(ctx, fwrules.IPTables, everything("c1", 4)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the first container: %v", err)
	}
	other := h.newNetNS("other")
	must(t, other.Do(func() error {
		unlock, err := iptables.LockNamespace(t.Context())
		if err != nil {
			return err
		}
		return unlock()
	}))
	must(t, unlock())
	unlock, err = iptables.LockNamespace(t.Context())
	must(t, err)
	must(t, unlock())
}

// TestIPTablesRemoveTakesExactlyItsOwn: similar rules stay. Leftovers of the
// address's previous container are not duplicated.
func TestIPTablesRemoveTakesExactlyItsOwn(t *testing.T) {
	eachVariant(t, func(t *testing.T, h *host, fw *Firewalls) {
		must(t, fw.Add(t.Context(), fwrules.IPTables, everything("c", 3)))
		must(t, fw.Add(t.Context(), fwrules.IPTables, everything("c1x", 14)))
		must(t, fw.Add(t.Context(), fwrules.IPTables, everything("c1", 4)))
		with := h.filters()
		h.decoys()
		decoys, _ := audit.Diff(with, h.filters())
		must(t, fw.Add(t.Context(), fwrules.IPTables, everything("c1", 4)))
		must(t, fw.Remove(t.Context(), fwrules.IPTables, everything("c1", 4)))
		left := h.filters()
		more, _ := audit.Diff(left, slices.Concat(left, decoys))
		if len(more) != len(decoys) {
			t.Error("the decoys are not counted")
		}
		for _, line := range decoys {
			if !slices.Contains(left, line) {
				t.Errorf("gone: %s", line)
			}
		}
		must(t, fw.Check(t.Context(), fwrules.IPTables, everything("c", 3)))
		must(t, fw.Check(t.Context(), fwrules.IPTables, everything("c1x", 14)))
		if err := fw.Check(t.Context(), fwrules.IPTables, everything("c1", 4)); err == nil {
			t.Error("c1 is still there")
		}
	})
}

// TestIPTablesRemoveLeavesTheOtherInterface: the container's other interface on
// the same network has the same chain.
func TestIPTablesRemoveLeavesTheOtherInterface(t *testing.T) {
	eachVariant(t, func(t *testing.T, h *host, fw *Firewalls) {
		first := fwrules.Rules{Masquerade: everything("c1", 4).Masquerade}
		second := fwrules.Rules{Masquerade: everything("c1", 5).Masquerade}
		second.Masquerade[0].IfName = "eth1"
		must(t, fw.Add(t.Context(), fwrules.IPTables, first))
		before := h.filters()
		must(t, fw.Add(t.Context(), fwrules.IPTables, second))
		must(t, fw.Check(t.Context(), fwrules.IPTables, first))
		must(t, fw.Remove(t.Context(), fwrules.IPTables, second))
		wantLines(t, "after the DEL of eth1", h.filters(), before)
		must(t, fw.Remove(t.Context(), fwrules.IPTables, fwrules.Rules{Masquerade: []fwrules.Masquerade{{Owner: first.Masquerade[0].Owner}}}))
		wantLines(t, "after a DEL without addresses", h.filters(), nil)
	})
}

// TestIPTablesAddTakesOverLeftovers: the address belonged to another
// container, which left its rules behind.
func TestIPTablesAddTakesOverLeftovers(t *testing.T) {
	eachVariant(t, func(t *testing.T, h *host, fw *Firewalls) {
		left := fwrules.Rules{Forward: everything("gone", 4).Forward}
		must(t, fw.Add(t.Context(), fwrules.IPTables, left))
		must(t, fw.Add(t.Context(), fwrules.IPTables, everything("c1", 4)))
		lines := h.filters()
		if once := slices.Compact(slices.Clone(lines)); len(once) != len(lines) {
			t.Errorf("something is there twice:\n%s", strings.Join(lines, "\n"))
		}
		must(t, fw.Remove(t.Context(), fwrules.IPTables, everything("c1", 4)))
		wantLines(t, "after DEL", h.filters().Without(audit.Shared), nil)
	})
}

// TestIPTablesManyPorts: more rules than one message to the kernel holds.
func TestIPTablesManyPorts(t *testing.T) {
	eachVariant(t, func(t *testing.T, h *host, fw *Firewalls) {
		r := everything("c1", 4)
		for i := range 200 {
			r.HostPorts[0].Ports = append(r.HostPorts[0].Ports, fwrules.HostPort{
				HostIP: netip.AddrFrom4([4]byte{127, 0, 0, 1}), HostPort: uint16(20000 + i), ContainerPort: 1, Protocol: "udp",
			})
		}
		must(t, fw.Add(t.Context(), fwrules.IPTables, r))
		must(t, fw.Check(t.Context(), fwrules.IPTables, r))
		must(t, fw.Remove(t.Context(), fwrules.IPTables, r))
		wantLines(t, "after DEL", h.filters().Without(audit.Shared), nil)
	})
}
