package plugintest

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

// Memory is the record of one attachment, in memory.
type Memory struct {
	contract.Record
	facts sync.Map // of json.RawMessage, by key
}

// NewMemory returns an empty record.
func NewMemory() *Memory { return &Memory{Record: contract.From(context.Background()).Record} }

func (m *Memory) Fact(key string) json.RawMessage {
	text, _ := m.facts.Load(key)
	fact, _ := text.(json.RawMessage) // nil if there is none
	return fact
}

func (m *Memory) Note(key string, value any) error {
	text, err := json.Marshal(value)
	if err == nil {
		m.facts.Store(key, json.RawMessage(text))
	}
	return err
}

// Keys lists the keys of the notes.
func (m *Memory) Keys() (keys []string) {
	m.facts.Range(func(key, _ any) bool { keys = append(keys, fmt.Sprint(key)); return true })
	slices.Sort(keys)
	return keys
}

// Comparing calls do with the request of a CHECK and the plugin, which must be a
// [contract.Comparer]. The request is valid until do returns.
func Comparing(ctx context.Context, host *netns.Handle, lookup func(string) plugin.Plugin, c Call, do func(ctx context.Context, r *plugin.Request, p contract.Comparer) error) error {
	_, err := Ours(host, func(typ string) plugin.Plugin {
		p := lookup(typ)
		if typ == c.Type {
			return probe{p, do}
		}
		return p
	}).Run(ctx, "CHECK", c)
	return err
}

type probe struct {
	plugin.Plugin
	do func(ctx context.Context, r *plugin.Request, p contract.Comparer) error
}

func (p probe) Check(ctx context.Context, r *plugin.Request) error {
	c, ok := p.Plugin.(contract.Comparer)
	if !ok {
		return fmt.Errorf("plugin %q does not compare", r.Type)
	}
	return p.do(ctx, r, Named{c})
}

// Named sets the type of the plugin in the differences, as the runner does.
type Named struct{ contract.Comparer }

func (n Named) Compare(ctx context.Context, r *plugin.Request, v *contract.View) ([]contract.Difference, error) {
	all, err := n.Comparer.Compare(ctx, r, v)
	for i := range all {
		all[i].Plugin = r.Type
	}
	return all, err
}

// mostRounds is more rounds than any repair needs.
const mostRounds = 5

// Repair compares and calls each Fix twice, again and again until there is none,
// and returns the differences that remain, of the last round. It does not repair
// the inside of the container unless told.
func Repair(ctx context.Context, r *plugin.Request, p contract.Comparer, v *contract.View, inside bool) (left []contract.Difference, err error) {
	for range mostRounds {
		if left, err = p.Compare(ctx, r, v); err != nil {
			return nil, err
		}
		fixed := false
		for _, d := range left {
			if d.Fix == nil || d.Inside && !inside {
				continue
			}
			for range 2 {
				if err := d.Fix(ctx); err != nil {
					return left, fmt.Errorf("%s: %w", Lines([]contract.Difference{d}), err)
				}
			}
			fixed = true
		}
		if !fixed {
			return left, nil
		}
	}
	return left, fmt.Errorf("there is more to repair after %d rounds: %s", mostRounds, Lines(left))
}

// Lines describes differences, one a line: what each is, whether it can be repaired, and
// the error of CHECK.
func Lines(all []contract.Difference) string { return describe(all, true) }

// Short is [Lines] without the errors of CHECK.
func Short(all []contract.Difference) string { return describe(all, false) }

func describe(all []contract.Difference, withErrors bool) string {
	var lines []string
	for _, d := range all {
		where, fix := "host", "fix"
		if d.Inside {
			where = "container"
		}
		if d.Fix == nil {
			fix = "no fix: " + d.Why
		}
		line := fmt.Sprintf("%s %s %s %q: wanted %q, found %q; %s", d.Plugin, where, d.Kind, d.Object, d.Wanted, d.Found, fix)
		if withErrors && d.Err != nil {
			line += "; " + d.Err.Error()
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// The parts of a listing that change by themselves, as a carrier comes and goes, or
// with the number of an interface.
var volatile = regexp.MustCompile(`(?m)^\d+: |@[\w.]+|\b\w+_timer +[\d.]+|link-netnsid \d+|link-netns \S+|\b(designated_\S+|port_id|port_no|bridge_id|root_port|topology_change\w*) +\S+|qlen \d+| linkdown| tentative|NO-CARRIER,|,LOWER_UP|\bstate (?:UP|DOWN|UNKNOWN|LOWERLAYERDOWN)\b`)

// State lists the interfaces, addresses, routes, bridge ports and rules of a
// namespace with every property that iproute2 and nft know, except what the
// kernel adds by itself some time later.
func State(t testing.TB, ns *netns.Handle) string {
	t.Helper()
	var out []byte
	err := ns.Do(func() (err error) {
		out, err = exec.Command("sh", "-c", `ip -d -o link
			ip -o addr | grep -v fe80:: | sed 's/valid_lft.*//'
			ip -d route show table all | grep -v -e 'table local' -e fe80:: -e '^multicast ff00::/8'
			bridge -d -o link; bridge -o vlan
			sysctl -a 2>/dev/null | grep -E '^net\.ipv[46]\.conf\.[^ ]*\.(forwarding|accept_ra|accept_dad|disable_ipv6) ' | grep -v veth
			nft list ruleset`).CombinedOutput()
		return err
	})
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	lines := strings.Split(volatile.ReplaceAllString(string(out), ""), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
