package netfilter

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/kernel/nft"
	"github.com/embedcni/cni/internal/nettest"
)

// withoutVariable makes the test binary a process on a kernel without nf_tables. Its
// value says whether iptables is hidden, too.
const withoutVariable = "NETFILTER_WITHOUT"

// withoutNFTables prints the results of the calls that look at the packet filter.
func withoutNFTables(hide bool) (err error) {
	if hide {
		err = nettest.HideIPTables()
	}
	if err = errors.Join(err, nettest.RefuseNetfilter()); err != nil {
		return err
	}
	ctx, fw := context.Background(), Open(nil, Options{})
	r := wanted("c1", "10.1.0.2/24", "fd00:1::2/64", 8080)
	fmt.Println("usable:", fw.Usable(ctx))
	_, err = fw.Missing(ctx, r.rules()...)
	fmt.Println("missing:", err, errors.Is(err, nft.ErrNotSupported))
	fmt.Println("in a snapshot:", expect.Err(fw.Snapshot().Missing(ctx, r.rules()...)))
	fmt.Println("restore:", fw.Restore(ctx, r.rules()...))
	return nil
}

// TestKernelWithoutNFTables: only legacy iptables can then have rules.
func TestKernelWithoutNFTables(t *testing.T) {
	for variant, usable := range map[string]string{"legacy": "<nil>", "nft": "packet filter: the kernel has no nf_tables", "hidden": "packet filter: the kernel has no nf_tables"} {
		t.Run(variant, func(t *testing.T) {
			link := variant
			if variant == "hidden" {
				link = "legacy"
			}
			newHost(t, link)
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), withoutVariable+"="+variant)
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
			out, err := cmd.CombinedOutput()
			expect.Must(t, err == nil, "%v: %s", err, out)
			const none = "the kernel has no nf_tables"
			want := []string{"usable: " + usable, "missing: " + none + " true", "in a snapshot: " + none, "restore: " + none}
			lines := strings.Split(string(out), "\n")
			for i, w := range want {
				expect.That(t, i < len(lines) && strings.HasPrefix(lines[i], w), "want %q in\n%s", w, out)
			}
		})
	}
}
