package netfilter

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/internal/nft"
)

// crowd makes the rules of n containers in several transactions: a single one
// would be longer than the tool can send.
func crowd(b *testing.B, fw *Firewalls, n int) {
	b.Helper()
	const many = 50
	for start := 0; start < n; start += many {
		var all fwrules.Rules
		for i := start; i < min(start+many, n); i++ {
			r := everything(fmt.Sprint("crowd", i), 1000+i)
			all.Masquerade = append(all.Masquerade, r.Masquerade...)
			all.HostPorts = append(all.HostPorts, r.HostPorts...)
			all.Forward = append(all.Forward, r.Forward...)
		}
		if err := fw.Add(context.Background(), fwrules.IPTables, all); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkIPTables is the cost of one container beside so many others: all of
// its rules, of one family and of both. The reference plugins portmap and
// firewall are measured with theirs, without masquerading, which is part of
// bridge.
func BenchmarkIPTables(b *testing.B) {
	for _, variant := range []string{"nft", "legacy"} {
		for _, n := range []int{10, 300, 1000} {
			h := newHost(b, variant)
			h.newNetNS("c1")
			var sockets nft.Pool
			fw := Open(h.ns, Options{Sockets: &sockets})
			b.Cleanup(func() {
				if err := sockets.Close(); err != nil {
					b.Error(err)
				}
			})
			ctx := context.Background()
			crowd(b, fw, n)
			for name, only := range map[string]func(fwrules.Rules) fwrules.Rules{"dual": func(r fwrules.Rules) fwrules.Rules { return r }, "v4": onlyV4} {
				rules := func(i int) fwrules.Rules { return only(everything(fmt.Sprint("c", i), i)) }
				b.Run(fmt.Sprintf("%s/%d/%s/ours", variant, n, name), func(b *testing.B) {
					addAndRemove(b,
						func(i int) error { return fw.Add(ctx, fwrules.IPTables, rules(i)) },
						func(i int) error { return fw.Remove(ctx, fwrules.IPTables, rules(i)) })
				})
				b.Run(fmt.Sprintf("%s/%d/%s/theirs", variant, n, name), func(b *testing.B) {
					addAndRemove(b,
						func(i int) error { return h.theirs("ADD", rules(i)) },
						func(i int) error { return h.theirs("DEL", rules(i)) })
				})
			}
		}
	}
}

// addAndRemove first adds all and then removes all, and reports the medians. An
// addition after another program's deletion waits for that one's grace period.
func addAndRemove(b *testing.B, add, remove func(i int) error) {
	each := func(unit string, fn func(i int) error) {
		took := make([]time.Duration, b.N)
		for i := range took {
			start := time.Now()
			if err := fn(1 + i); err != nil {
				b.Fatal(err)
			}
			took[i] = time.Since(start)
		}
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, unit)
	}
	each("ms/add", add)
	each("ms/remove", remove)
}

// theirs runs the reference plugins portmap and firewall for the same.
func (h *host) theirs(verb string, r fwrules.Rules) error {
	ips := ""
	for _, p := range r.Masquerade[0].Addresses {
		ips += fmt.Sprintf(`, {"address": %q}`, p)
	}
	const config = `{"cniVersion": "1.0.0", "name": "podnet", "type": %q, "backend": "iptables",
		"runtimeConfig": {"portMappings": [{"hostPort": %d, "containerPort": 80, "protocol": "tcp"}]},
		"prevResult": {"cniVersion": "1.0.0", "ips": [%s]}}`
	for _, typ := range []string{"portmap", "firewall"} {
		cmd := exec.Command(filepath.Join(h.plugins, typ))
		cmd.Env = append(os.Environ(), "CNI_COMMAND="+verb, "CNI_CONTAINERID="+r.Masquerade[0].ContainerID, "CNI_IFNAME=eth0",
			"CNI_NETNS="+filepath.Join(h.dir, "netns", "c1"), "CNI_PATH="+h.plugins)
		cmd.Stdin = strings.NewReader(fmt.Sprintf(config, typ, r.HostPorts[0].Ports[0].HostPort, strings.TrimPrefix(ips, ", ")))
		out, err := []byte(nil), error(nil)
		err = h.ns.Do(func() error {
			out, err = cmd.CombinedOutput()
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: %w: %s", typ, err, out)
		}
	}
	return nil
}

// onlyV4 leaves the IPv6 addresses out.
func onlyV4(r fwrules.Rules) fwrules.Rules {
	r.Masquerade[0].Addresses = r.Masquerade[0].Addresses[:1]
	r.HostPorts[0].V6 = netip.Prefix{}
	r.Forward[0].Addresses = r.Forward[0].Addresses[:1]
	return r
}
