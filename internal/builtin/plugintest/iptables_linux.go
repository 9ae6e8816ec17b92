package plugintest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netns"
)

// UseIPTables selects the variant behind the plain names until the test ends.
func UseIPTables(t testing.TB, variant string) {
	t.Helper()
	path := "/usr/sbin:/sbin:" + os.Getenv("PATH")
	t.Setenv("PATH", path)
	bin := t.TempDir()
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-save", "-restore"} {
			tool, err := exec.LookPath(family + "-" + variant + suffix)
			if err != nil {
				t.Fatalf("these tests need both variants of iptables: %v", err)
			}
			expect.NoError(t, os.Symlink(tool, filepath.Join(bin, family+suffix)))
		}
	}
	t.Setenv("PATH", bin+":"+path)
}

// Filters lists the packet filters of a namespace.
func Filters(t testing.TB, ns *netns.Handle) audit.Lines {
	t.Helper()
	return snapshot(t, ns, audit.Options{}).Without(func(l string) bool { return !audit.IsRule(l) })
}
