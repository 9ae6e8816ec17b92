package iptform

import (
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/nettest"
)

// forwarding returns n addresses, and the maker in a namespace in which CNI-FORWARD
// has rules for a thousand others.
func forwarding(tb testing.TB, n int) (maker, desired) {
	tb.Helper()
	nettest.Enter(tb, nettest.At(tb, filepath.Join(tb.TempDir(), "host")))
	input := "*filter\n:CNI-FORWARD - [0:0]\n"
	for i := range 1000 {
		input += fmt.Sprintf("-A CNI-FORWARD -s 10.2.%d.%d/32 -j ACCEPT\n", i>>8, i&0xff)
	}
	restore(tb, input)
	f := fwrules.Forward{Owner: c1().Owner}
	for i := range n {
		f.Addresses = append(f.Addresses, netip.AddrFrom4([4]byte{10, 1, 0, byte(i + 1)}))
	}
	return Form{}.maker(false, false), desiredOf(fwrules.Rules{Forward: []fwrules.Forward{f}}, false)
}

func restore(tb testing.TB, input string) {
	tb.Helper()
	cmd := exec.Command("sh", "-c", "PATH=$PATH:/usr/sbin:/sbin; exec iptables-nft-restore --noflush")
	cmd.Stdin = strings.NewReader(input + "COMMIT\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("%v: %s", err, out)
	}
}

// TestLookFindsAddresses of which there is a rule, and no others.
func TestLookFindsAddresses(t *testing.T) {
	x, w := forwarding(t, 4)
	restore(t, "*filter\n-A CNI-FORWARD -d 10.1.0.3/32 -j ACCEPT\n-A CNI-FORWARD -s 10.1.0.1/32 -p tcp -j DROP\n")
	f, err := x.look(t.Context(), w)
	must(t, err)
	var found []string
	for _, a := range w.addrs() {
		if _, ok := f.addrs[a]; ok {
			found = append(found, a.String())
		}
	}
	if got, want := strings.Join(found, " "), "10.1.0.1 10.1.0.3"; got != want {
		t.Errorf("found %s, want %s", got, want)
	}
}

// BenchmarkLook holds that the number of addresses does not matter.
func BenchmarkLook(b *testing.B) {
	for _, n := range []int{1, 8} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			x, w := forwarding(b, n)
			for b.Loop() {
				if _, err := x.look(b.Context(), w); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
