package main

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/embedcni/cni/cnitest"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/sandbox"
)

func TestMain(m *testing.M) { os.Exit(sandbox.Main(m)) }

// printed is in the README, below the program.
const printed = `
web-1 has 10.123.0.2/24 in /var/lib/cni/embedcni/attachments/netns/c4719afa76fa448b5eca99e673688584
`

// TestFirst runs the program: it prints what the README says and leaves nothing, no
// interface either that other containers would use, which the audit leaves out.
func TestFirst(t *testing.T) {
	audit := func() []string {
		return expect.Value(cnitest.Audit(t.Context(), cnitest.Options{StateDirs: []string{"/run", "/var/lib/cni"}}))(t)
	}
	path := filepath.Join(t.TempDir(), "printed")
	terminal, file := os.Stdout, expect.Value(os.Create(path))(t)
	before := audit()
	os.Stdout = file
	main()
	os.Stdout = terminal
	expect.Same(t, "left", cnitest.Diff(before, audit()), "")
	expect.Same(t, "interfaces", len(expect.Value(net.Interfaces())(t)), 1)
	expect.NoError(t, file.Close())
	expect.Same(t, "printed", "\n"+string(expect.Value(os.ReadFile(path))(t)), printed)
}
