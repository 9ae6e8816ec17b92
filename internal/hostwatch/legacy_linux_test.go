package hostwatch

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/guard"
	"github.com/embedcni/cni/internal/hostns"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/sandbox"
)

func TestMain(m *testing.M) { os.Exit(sandbox.Main(m)) }

// TestLegacyRead: a rule that has gone is noticed although another has come, and so is one
// that was replaced.
func TestLegacyRead(t *testing.T) {
	for tool, address := range map[string]string{"iptables-legacy": "10.1.0.%d", "ip6tables-legacy": "2001:db8::%d"} {
		t.Run(tool, func(t *testing.T) {
			ns := nettest.New(t)
			nettest.Enter(t, ns) // of this subtest's own thread
			host, err := hostns.NewFinder().Open("")
			expect.NoError(t, err)
			defer func() { expect.NoError(t, host.Close()) }()
			legacy := &Legacy{Host: host}
			run := func(args string) {
				t.Helper()
				out, err := exec.Command("sh", "-c", tool+" -w "+args).CombinedOutput()
				if err != nil {
					t.Fatalf("%s %s: %v: %s", tool, args, err, out)
				}
			}
			read := func() (events []guard.Event) {
				t.Helper()
				expect.NoError(t, legacy.Read(func(e guard.Event) { events = append(events, e) }))
				return events
			}
			used := func() bool { return expect.Value(legacy.Used())(t) }
			expect.Same(t, "used without tables", used(), false)
			run("-N CNI-FORWARD")
			expect.Same(t, "used by no container", used(), false)
			a, b := fmt.Sprintf(address, 1), fmt.Sprintf(address, 2)
			run("-A CNI-FORWARD -s " + a + " -j ACCEPT")
			expect.Same(t, "used by the firewall plugin", used(), true)
			changed := []guard.Event{{Rules: &guard.Changed{}}}
			expect.Same(t, "at first", read(), changed)
			expect.Same(t, "unchanged", read(), nil)
			run("-D CNI-FORWARD -s " + a + " -j ACCEPT")
			run("-A CNI-FORWARD -s " + b + " -j ACCEPT")
			expect.Same(t, "one has gone, one has come", read(), changed)
			run("-I CNI-FORWARD -s " + a + " -j ACCEPT")
			run("-N other")
			run("-A FORWARD -j CNI-FORWARD")
			expect.Same(t, "additions before and behind it", read(), nil)
			run("-I CNI-FORWARD -s " + a + " -p tcp -j ACCEPT")
			expect.Same(t, "another addition", read(), nil)
			run("-R CNI-FORWARD 1 -s " + a + " -p udp -j ACCEPT")
			expect.Same(t, "replaced", read(), changed)
			run("-F FORWARD")
			run("-F CNI-FORWARD")
			run("-X CNI-FORWARD")
			expect.Same(t, "all have gone", read(), changed)
			run("-t nat -N CNI-DN-0123456789abcdef01234")
			expect.Same(t, "used by portmap", used(), true)
		})
	}
}
