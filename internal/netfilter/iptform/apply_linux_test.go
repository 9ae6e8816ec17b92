package iptform

import (
	"context"
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/iptables"
)

// full returns a table nat with a container's two chains.
func full() string {
	return nat(":{masq} - [0:0]", ":{dnat} - [0:0]", ":CNI-HOSTPORT-DNAT - [0:0]", "-A {masq} -d 10.1.0.0/24 {comment} -j ACCEPT",
		"-A POSTROUTING -s 10.1.0.2/32 {comment} -j {masq}", "-A POSTROUTING -s 10.1.0.2/32 {comment} -j {masq}",
		"-A CNI-HOSTPORT-DNAT {dnat comment} -j {dnat}", "-A {dnat} -p tcp -j DNAT --to-destination 10.1.0.2:80", "-A POSTROUTING -j MASQUERADE")
}

func TestApplyToIPTables(t *testing.T) {
	// Each interferes once, between the listing and the first transaction.
	tests := map[string]struct {
		interfere func(*fakeTool)
		wantErr   string // joined lines
		wantLeft  string // besides unrelated rules
	}{
		"nobody interferes": {interfere: func(*fakeTool) {}},
		"a copy of a rule is gone": {interfere: func(f *fakeTool) {
			_ = f.sets[0].run(words().Replace("-D POSTROUTING -s 10.1.0.2/32 {comment} -j {masq}"))
		}},
		"a chain is gone": {interfere: func(f *fakeTool) {
			for _, line := range []string{"-D CNI-HOSTPORT-DNAT {dnat comment} -j {dnat}", "-F {dnat}", "-X {dnat}"} {
				if err := f.sets[0].run(words().Replace(line)); err != nil {
					panic(err)
				}
			}
		}},
		"everything is gone": {interfere: func(f *fakeTool) { *f = *newFakeTool(f.tool, nat("-A POSTROUTING -j MASQUERADE")) }},
		"a chain is jumped to once more": {
			interfere: func(f *fakeTool) {
				f.sets[0].Rules = append(f.sets[0].Rules, iptables.Rule{Chain: "POSTROUTING", Spec: "-j " + masqC1, Args: []string{"-j", masqC1}})
			},
			wantErr:  "iptables-nft -t nat -X {masq}: line 2 failed: device or resource busy",
			wantLeft: ":{masq}\n-A POSTROUTING -j {masq}\n",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			fake := newFakeTool("iptables-nft", full())
			plan, err := find(t, c1(), fake)
			if err != nil {
				t.Fatal(err)
			}
			fake.onRestore = func(f *fakeTool) {
				f.onRestore = nil
				tt.interfere(f)
			}
			got := ""
			if err := plan.Apply(t.Context()); err != nil {
				got = err.Error()
			}
			if want := words().Replace(tt.wantErr); got != want {
				t.Errorf("error %q, want %q", got, want)
			}
			left := strings.NewReplacer("*nat\n", "", "COMMIT\n", "", ":POSTROUTING - [0:0]\n", "", ":FORWARD - [0:0]\n", "",
				":CNI-HOSTPORT-DNAT - [0:0]\n", "", "-A POSTROUTING -j MASQUERADE\n", "", " - [0:0]", "").Replace(fake.text())
			if want := words().Replace(tt.wantLeft); left != want {
				t.Errorf("left %q, want %q", left, want)
			}
		})
	}
}

// TestApplyPassesNoLineFeedOn: text after a line feed in a comment would become
// a command.
func TestApplyPassesNoLineFeedOn(t *testing.T) {
	evil := "-A POSTROUTING -m comment --comment \"x\n-F POSTROUTING\" -j {masq}"
	fake := newFakeTool("iptables-nft", nat(":{masq} - [0:0]", evil, "-A POSTROUTING {comment} -j {masq}"))
	plan, err := find(t, c1(), fake)
	if err != nil {
		t.Fatal(err)
	}
	err = plan.Apply(t.Context())
	if !errors.Is(err, iptables.ErrLineFeed) || !errors.Is(err, unix.EBUSY) {
		t.Error(err)
	}
	if got, want := fake.text(), words().Replace(evil); !strings.Contains(got, want) {
		t.Errorf("%q lacks %q", got, want)
	}
	for _, text := range fake.restored {
		if strings.Contains(text, "-F POSTROUTING") {
			t.Errorf("restored %q", text)
		}
	}
}

func TestApplyEndsWithItsContext(t *testing.T) {
	tool := newFakeTool("iptables-nft", full())
	plan, err := find(t, c1(), tool)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := plan.Apply(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if len(tool.restored) > 0 {
		t.Errorf("restored %q", tool.restored)
	}
	if err := plan.Apply(t.Context()); err != nil {
		t.Error(err)
	}
}
