package netfilter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
)

// records are the records of several attachments.
type records struct {
	mu    sync.Mutex
	notes map[string]json.RawMessage // by container
}

// of returns the record of a container.
func (r *records) of(id string) *notebook { return &notebook{r, id} }

// inNetwork reports whether another container than one needs a subnet.
func (r *records) inNetwork(id string) func(netip.Prefix) (bool, error) {
	return func(subnet netip.Prefix) (bool, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		for other, note := range r.notes {
			subnets, err := NotedSubnets(note, false)
			if err != nil || other != id && slices.Contains(subnets, subnet) {
				return true, err
			}
		}
		return false, nil
	}
}

type notebook struct {
	all *records
	id  string
}

func (n *notebook) Fact(string) json.RawMessage {
	n.all.mu.Lock()
	defer n.all.mu.Unlock()
	return n.all.notes[n.id]
}

func (n *notebook) Note(_ string, value any) error {
	note, err := json.Marshal(value)
	n.all.mu.Lock()
	defer n.all.mu.Unlock()
	if n.all.notes == nil {
		n.all.notes = make(map[string]json.RawMessage)
	}
	n.all.notes[n.id] = note
	return err
}

// forwarded are the rules that accept the packets of a network of two subnets.
func forwarded() testRules {
	return testRules{Forward: []testForward{{
		Owner: Owner{Network: "podnet", ContainerID: "c1", IfName: "eth0"}, Addresses: []netip.Prefix{netip.MustParsePrefix("10.1.0.2/24"), netip.MustParsePrefix("fd00:1::2/64")},
	}}}
}

// leaving is an attachment that is being removed.
func (r *records) leaving(id string) Target {
	return Target{
		Owner:   Owner{Network: "podnet", ContainerID: id, IfName: "eth0"},
		Subnets: Subnets(forwarded().Forward[0].Addresses), InNetwork: r.inNetwork(id),
	}
}

// leave removes an attachment.
func (r *records) leave(ctx context.Context, fw *Firewalls, id string) error {
	if err := Leave(r.of(id)); err != nil {
		return err
	}
	return fw.LeaveSubnets(ctx, r.leaving(id))
}

// eachVariant runs a test on a host with each variant of iptables.
func eachVariant(t *testing.T, test func(t *testing.T, h *host)) {
	for _, variant := range []string{"nft", "legacy"} {
		t.Run(variant, func(t *testing.T) { test(t, newHost(t, variant)) })
	}
}

// TestTheLastOfANetworkTakesItsRulesAlong, and not the next to last. The chains and the
// jumps stay, as those of the reference plugins do. All records are read once for each
// subnet, even if other rules change meanwhile.
func TestTheLastOfANetworkTakesItsRulesAlong(t *testing.T) {
	eachVariant(t, func(t *testing.T, h *host) {
		all := &records{}
		for _, id := range []string{"c1", "c2"} {
			expect.NoError(t, Open(h.ns, Options{Notes: all.of(id)}).Add(t.Context(), forwarded().rules()...))
		}
		with := h.filters()
		expect.NoError(t, all.leave(t.Context(), h.fw, "c1"))
		h.wantFilters(with)
		expect.NoError(t, h.fw.Check(t.Context(), forwarded()))
		plan := expect.Value(Find(t.Context(), h.fw, all.leaving("c2")))(t)
		got := strings.Count(plan.String(), "-D CNI-FORWARD ")
		expect.That(t, got == 4, "the last one's plan has %d rules:\n%s", got, plan)
		expect.NoError(t, Leave(all.of("c2")))
		last, asked := all.leaving("c2"), 0
		last.InNetwork = func(subnet netip.Prefix) (bool, error) {
			asked++
			h.sh("nft add table inet others; nft delete table inet others")
			return all.inNetwork("c2")(subnet)
		}
		expect.NoError(t, h.fw.LeaveSubnets(t.Context(), last))
		expect.Same(t, "questions about two subnets", asked, 2)
		left := h.filters().Without(audit.Shared)
		expect.That(t, len(left) == 0, "left:\n%s", strings.Join(left, "\n"))
		expect.That(t, len(expect.Value(h.fw.Missing(t.Context(), forwarded().rules()...))(t)) != 0, "no rule is missing")
		expect.NoError(t, all.leave(t.Context(), h.fw, "c2")) // once more
	})
}

// TestProgramsWithRecordsOfTheirOwn do not take each other's rules along.
func TestProgramsWithRecordsOfTheirOwn(t *testing.T) {
	h := newHost(t, "nft")
	one, other := &records{}, &records{}
	options := func(r *records) Options { return Options{Notes: r.of("c1"), Records: t.TempDir()} }
	first := Open(h.ns, options(one))
	expect.NoError(t, first.Add(t.Context(), forwarded().rules()...))
	alone := h.filters()
	second := Open(h.ns, options(other))
	expect.NoError(t, second.Add(t.Context(), forwarded().rules()...))
	expect.NoError(t, other.leave(t.Context(), second, "c1"))
	h.wantFilters(alone)
	expect.NoError(t, first.Check(t.Context(), forwarded()))
}

// TestComingAndGoingAtOnce: whoever has come has the rules, while others come and go at
// the same time, as the first and as the last. In the end there are none.
func TestComingAndGoingAtOnce(t *testing.T) {
	eachVariant(t, func(t *testing.T, h *host) {
		all := &records{}
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				id := fmt.Sprint("c", i)
				fw := Open(h.ns, Options{Notes: all.of(id)})
				for range 6 {
					if err := errors.Join(fw.Add(t.Context(), forwarded().rules()...), fw.Check(t.Context(), forwarded()), all.leave(t.Context(), fw, id)); err != nil {
						t.Errorf("%s: %v", id, err)
						return
					}
				}
			})
		}
		wg.Wait()
		left := h.filters().Without(audit.Shared)
		expect.That(t, len(left) == 0, "left:\n%s", strings.Join(left, "\n"))
	})
}

// addVariable makes the test binary a process that has packets accepted.
const addVariable = "NETFILTER_ADD"

func addInProcess() int {
	if err := Open(nil, Options{}).Add(context.Background(), forwarded().rules()...); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// TestProcessesMakeTheRulesOnce, although they share only the namespace.
func TestProcessesMakeTheRulesOnce(t *testing.T) {
	eachVariant(t, func(t *testing.T, h *host) {
		var wg sync.WaitGroup
		outputs, errs := make([][]byte, 4), make([]error, 4)
		for i := range outputs {
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), addVariable+"=1")
			wg.Go(func() {
				errs[i] = h.ns.Do(func() (err error) {
					outputs[i], err = cmd.CombinedOutput()
					return err
				})
			})
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatalf("%v: %s", err, slices.Concat(outputs...))
		}
		expect.NoError(t, h.fw.Check(t.Context(), forwarded()))
		lines := h.filters()
		once := slices.Compact(slices.Clone(lines))
		expect.That(t, len(once) == len(lines), "something is there twice:\n%s", strings.Join(lines, "\n"))
	})
}

// TestTheIsolationOfExecutablesComesFirst: what it drops must not be accepted.
func TestTheIsolationOfExecutablesComesFirst(t *testing.T) {
	h := newHost(t, "nft")
	h.sh("iptables -N CNI-ISOLATION-STAGE-1; iptables -A FORWARD -p icmp -j ACCEPT; iptables -A FORWARD -j CNI-ISOLATION-STAGE-1")
	expect.NoError(t, h.fw.Add(t.Context(), forwarded().rules()...))
	h.sh(`test "$(iptables -S FORWARD | sed -n '/-j CNI-/s/.*-j //p' | tr '\n' ' ')" = 'CNI-ISOLATION-STAGE-1 CNI-FORWARD '`)
}

// TestUnreadableRecordsAreAnError: the rules are named after their directory, so that none
// would be found.
func TestUnreadableRecordsAreAnError(t *testing.T) {
	h := newHost(t, "nft")
	file := t.TempDir() + "/file"
	expect.NoError(t, os.WriteFile(file, nil, 0o600))
	all := &records{}
	fw := Open(h.ns, Options{Notes: all.of("c1"), Records: file + "/records"})
	expect.Is(t, fw.Add(t.Context(), forwarded().rules()...), unix.ENOTDIR)
	_, err := Find(t.Context(), fw, Target{Owner: Owner{Network: "net", ContainerID: "c1", IfName: "eth0"}, Subnets: Subnets(forwarded().Forward[0].Addresses)})
	expect.That(t, errors.Is(err, unix.ENOTDIR), "a search: %v", err)
}
