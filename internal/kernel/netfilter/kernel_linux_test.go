package netfilter

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/iptables"
)

// minus returns lines without the others.
func minus(lines, without audit.Lines) audit.Lines {
	left, _ := audit.Diff(without, lines)
	return left
}

// made returns the lines that fn adds.
func (h *host) made(fn func()) audit.Lines {
	h.t.Helper()
	before := h.filters()
	fn()
	return minus(h.filters(), before)
}

const common = `{"type": "bridge", "bridge": "BRIDGE", "ipMasq": true, "ipMasqBackend": "BACKEND", "ipam": IPAM},
	{"type": "portmap", "backend": "BACKEND", "capabilities": {"portMappings": true}}, {"type": "firewall", "backend": "iptables"}`

// TestSweepSparesTheContainersOtherAttachments: the container's other interface
// on the network, and its interface on another network, share names and
// comments with the one that is removed.
func TestSweepSparesTheContainersOtherAttachments(t *testing.T) {
	for _, backend := range []string{"iptables", "nftables"} {
		for _, variant := range []string{"nft", "legacy"} {
			t.Run(backend+" "+variant, func(t *testing.T) {
				h := newHost(t, variant)
				plugins := strings.ReplaceAll(common, "BACKEND", backend)
				podnet, other := h.network("podnet", "1", plugins), h.network("other", "2", plugins)
				eth0 := h.mustAdd(podnet, "c1", "eth0", fewMappings(1000))
				var eth1, net1 attachment
				siblings := h.made(func() {
					eth1 = h.mustAdd(podnet, "c1", "eth1", fewMappings(2000))
					net1 = h.mustAdd(other, "c1", "net1", fewMappings(3000))
				})
				target := eth0.target()
				target.Siblings.Addresses = append(eth1.addr, net1.addr...)
				h.sweep(target)
				left := h.filters()
				lost := minus(siblings, left)
				expect.That(t, len(lost) == 0, "lost:\n%s", strings.Join(lost, "\n"))
				for _, a := range eth0.addr {
					lines := left.Without(func(l string) bool { return !mentions(l, a.String()) })
					expect.That(t, len(lines) == 0, "left of %v:\n%s", a, strings.Join(lines, "\n"))
				}
				// Then the others: in the end only shared rules remain.
				target = eth1.target()
				target.Siblings.Addresses = net1.addr
				h.sweep(target)
				h.sweep(net1.target())
				left = h.filters().Without(audit.Shared)
				expect.That(t, len(left) == 0, "left:\n%s", strings.Join(left, "\n"))
			})
		}
	}
}

// mentions reports whether the line has the address as a word, or at the start
// of one, before a port or a prefix length.
func mentions(line, addr string) bool {
	for _, w := range strings.Fields(line) {
		rest, ok := strings.CutPrefix(strings.TrimPrefix(w, "["), addr)
		if ok && (rest == "" || strings.ContainsRune("/:]", rune(rest[0]))) {
			return true
		}
	}
	return false
}

// TestSweepSparesAddressesInUse: with two networks of the same range, another
// container may have the same address. Only the plugin firewall's rules are
// identified by address alone.
func TestSweepSparesAddressesInUse(t *testing.T) {
	h := newHost(t, "nft")
	plugins := strings.ReplaceAll(common, "BACKEND", "iptables")
	goes := h.mustAdd(h.network("podnet", "1", plugins), "c1", "eth0", "")
	lives := h.made(func() {
		h.mustAdd(h.network("twin", "3", strings.ReplaceAll(plugins, "IPAM", twinIPAM)), "c2", "eth0", fewMappings(1000))
	})
	target := goes.target()
	target.InUse = target.Addresses
	want := minus(h.filters(), nil)
	plan := h.sweep(target)
	gone := minus(want, h.filters())
	for _, line := range gone {
		expect.That(t, !strings.Contains(line, "CNI-FORWARD"), "gone, though the address is in use: %s", line)
	}
	expect.That(t, len(gone) >= 8 && len(minus(lives, h.filters())) == 0, "gone:\n%s\nplan:\n%s", strings.Join(gone, "\n"), plan)
}

const twinIPAM = `{"type": "static", "addresses": [{"address": "10.1.0.2/24"}, {"address": "fd00:1::2/64"}]}`

// TestSweepFindsAnyName: names at the limits. With the longest the plugins fail
// half way, because the comments do not fit.
func TestSweepFindsAnyName(t *testing.T) {
	for name, tt := range map[string]struct {
		network, id string
		fails       bool
	}{
		"dots and dashes":              {"a.b-c_d", "..c-1.2_3-"[2:], false},
		"dashes that could be options": {"n", "c--comment", false},
		"long":                         {strings.Repeat("n", 60), strings.Repeat("c", 64), false},
		"longest":                      {strings.Repeat("n", 200), strings.Repeat("c", 255), true},
	} {
		for _, backend := range []string{"iptables", "nftables"} {
			t.Run(name+" "+backend, func(t *testing.T) {
				h := newHost(t, "nft")
				plugins := strings.ReplaceAll(common, "BACKEND", backend)
				if !tt.fails { // otherwise it fails before anything is made
					plugins = strings.Replace(plugins, "{", `{"macspoofchk": true, `, 1)
				}
				list := h.network(tt.network, "1", plugins)
				h.mustAdd(h.network("zero", "9", strings.ReplaceAll(common, "BACKEND", backend)), "zero", "eth0", fewMappings(1000))
				before := h.filters()
				a, err := h.add(list, tt.id, "eth0", fewMappings(2000))
				expect.Must(t, tt.fails == (err != nil), "ADD: %v", err)
				expect.Must(t, len(minus(h.filters(), before)) != 0, "ADD made nothing, %v", err)
				target := a.target()
				target.Addresses = addrs("10.1.0.2", "fd00:1::2") // a failed ADD does not report them
				h.sweep(target)
				left := minus(h.filters(), before).Without(audit.Shared)
				expect.That(t, len(left) == 0, "left:\n%s", strings.Join(left, "\n"))
			})
		}
	}
}

// TestSweepSparesAContainerWithTheSameChain: the hash joins network and ID. DEL of
// one deletes the other's chain, and the sweep does not.
func TestSweepSparesAContainerWithTheSameChain(t *testing.T) {
	for _, variant := range []string{"nft", "legacy"} {
		h := newHost(t, variant)
		plugins := strings.ReplaceAll(common, "BACKEND", "iptables")
		goes := h.mustAdd(h.network("pod", "1", plugins), "net1", "eth0", fewMappings(1000))
		var lives attachment
		lines := h.made(func() { lives = h.mustAdd(h.network("podn", "2", plugins), "et1", "eth0", fewMappings(2000)) })
		h.sweep(goes.target())
		lost := minus(lines, h.filters())
		expect.That(t, len(lost) == 0, "lost:\n%s", strings.Join(lost, "\n"))
		h.sweep(lives.target())
	}
}

// TestFindNothingAfterDEL: after a DEL there is nothing to find.
func TestFindNothingAfterDEL(t *testing.T) {
	for name, s := range setups() {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, s.variant)
			a := h.mustAdd(h.network("podnet", "1", s.plugins), "c1", "eth0", fewMappings(1000))
			expect.NoError(t, h.libcni().DelNetworkList(t.Context(), a.list, a.rt))
			plan := h.find(a.target())
			expect.That(t, plan.Empty(), "found:\n%s", plan)
		})
	}
}

// TestFindMakesNoTables: a search changes nothing and makes no table, not even
// an empty one.
func TestFindMakesNoTables(t *testing.T) {
	plan := newHost(t, "nft").find(c1())
	expect.That(t, plan.Empty(), "%v", plan)
	out, err := exec.Command("nft", "list", "ruleset").Output()
	expect.That(t, err == nil && len(out) == 0, "%v, %s", err, out)
	for _, file := range []string{"ip_tables_names", "ip6_tables_names"} {
		names, err := os.ReadFile("/proc/thread-self/net/" + file)
		expect.That(t, (err == nil || errors.Is(err, fs.ErrNotExist)) && len(names) == 0, "%s: %v, %s", file, err, names)
	}
}

// TestOpenOfAnotherNamespace: a handle suffices, and the caller stays in its
// namespace.
func TestOpenOfAnotherNamespace(t *testing.T) {
	h := newHost(t, "nft")
	ns := h.newNetNS("another")
	h.fw = Open(ns, Options{})
	expect.NoError(t, ns.Do(func() error {
		h.sh("iptables-nft -t nat -N " + masqC1 + "; ip6tables-legacy -t nat -N " + masqC1 +
			"; nft 'add table ip cni_hostport; add chain ip cni_hostport hostports; add rule ip cni_hostport hostports drop comment c1'")
		return nil
	}))
	want := "iptables-nft -t nat -X " + masqC1 + "\nip6tables-legacy -t nat -X " + masqC1 + "\nnft delete rule ip cni_hostport hostports handle 2 # \"c1\"\n"
	expect.Same(t, "plan", h.sweep(c1()).String(), want)
}

// TestApplyToAChangedKernel: somebody makes changes between the search and the
// deletion.
func TestApplyToAChangedKernel(t *testing.T) {
	h := newHost(t, "nft")
	a := h.mustAdd(h.network("podnet", "1", setups()["bridge iptables-nft"].plugins), "c1", "eth0", fewMappings(1000))
	chains := Owner{Network: "podnet", ContainerID: "c1"}.Chains()
	plan := h.find(a.target())
	h.sh("iptables-nft -t nat -D POSTROUTING 2; iptables-nft -t nat -A POSTROUTING -j " + chains[0].Name +
		"; ip6tables-nft -t nat -F; ip6tables-nft -t nat -X; nft add rule bridge nat PREROUTING jump cni-br-iface-c1-eth0")
	err := plan.Apply(t.Context())
	for _, want := range []string{"iptables-nft -t nat -X " + chains[0].Name + ": ", "nftables: delete chain bridge nat cni-br-iface-c1-eth0: "} {
		expect.Says(t, "refusal", err, want)
	}
	expect.Is(t, err, unix.EBUSY)
	expect.Same(t, "errors after the first", strings.Count(fmt.Sprintf("%+v", err), "\n"), 1)
	// A later addition belongs to the container too.
	want := "iptables-nft -t nat -D POSTROUTING -j " + chains[0].Name + "\niptables-nft -t nat -X " + chains[0].Name + "\n"
	got := h.sweep(a.target()).String()
	expect.That(t, strings.HasPrefix(got, want) && strings.Count(got, "\n") == 4, "got\n%s", got)
}

// TestApplyToATableMadeAgain: another rule with the same handle in the same
// place is a different rule.
func TestApplyToATableMadeAgain(t *testing.T) {
	h := newHost(t, "nft")
	rules := func(comment string) {
		h.sh("nft add table ip cni_hostport; nft delete table ip cni_hostport; nft 'add table ip cni_hostport; add chain ip cni_hostport hostports; add rule ip cni_hostport hostports drop comment " + comment + "'")
	}
	rules("c1")
	plan := h.find(c1())
	rules("c2")
	err := plan.Apply(t.Context())
	expect.That(t, err == nil && !plan.Empty(), "%v, plan %s", err, plan)
	other := c1()
	other.ContainerID = "c2"
	expect.Same(t, "left", h.find(other).String(), strings.Replace(plan.String(), `"c1"`, `"c2"`, 1))
}

// TestApplyWaitsForTheLock of legacy iptables until the context ends.
func TestApplyWaitsForTheLock(t *testing.T) {
	h := newHost(t, "legacy")
	h.sh("iptables-legacy -t nat -N " + masqC1)
	plan := h.find(c1())
	lock := expect.Value(os.OpenFile("/run/xtables.lock", os.O_CREATE|os.O_RDWR, 0o600))(t)
	defer lock.Close()
	expect.NoError(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	expect.Limited(100*time.Millisecond, func(limit time.Duration) bool {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		begin := time.Now()
		err := plan.Apply(ctx)
		expect.Within(t, "Apply", time.Since(begin), limit+expect.Patience/2)
		expect.Is(t, err, context.DeadlineExceeded)
		waited := err != nil && strings.Contains(err.Error(), "iptables-legacy -t nat -X "+masqC1)
		expect.That(t, waited || limit < expect.Patience/4, "got %v", err)
		return !waited // it had not come to that program
	})
	expect.NoError(t, unix.Flock(int(lock.Fd()), unix.LOCK_UN))
	expect.NoError(t, plan.Apply(t.Context()))
}

// TestFindIsNotBlind: iptables-nft-save omits a table that has a rule of nft's
// own kind, and exits with 0. Some versions do not.
func TestFindIsNotBlind(t *testing.T) {
	h := newHost(t, "nft")
	h.sh("iptables-nft -t nat -N " + masqC1 + "; nft 'add chain ip nat x; add rule ip nat x ip saddr 10.1.0.2 fib daddr type local accept'; iptables-nft -N CNI-FORWARD; iptables-nft -A CNI-FORWARD -s 10.1.0.2 -j ACCEPT")
	plan, err := Find(t.Context(), h.fw, c1())
	t.Logf("plan:\n%s\nerror: %v", plan, err)
	expect.That(t, err != nil || strings.Contains(plan.String(), "-t nat -X "+masqC1), "neither the chain nor an error")
	want := "iptables-nft -t filter -D CNI-FORWARD -s 10.1.0.2/32 -j ACCEPT\n"
	expect.That(t, strings.HasPrefix(plan.String(), want), "the plan lacks the other table's part, %s", want)
	if err != nil && (!errors.Is(err, iptables.ErrHidden) || !strings.Contains(err.Error(), "iptables-nft: list the rules: table nat, chain "+masqC1)) {
		t.Error(err)
	}
}
