package cnitest_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/embedcni/cni/cnitest"
)

// A killed plugin has left its address reserved. The runtime's test detects
// that.
func Example() {
	ctx := context.Background()
	before, err := cnitest.Audit(ctx, cnitest.Options{})
	if err != nil {
		log.Fatal(err)
	}

	dir := "/var/lib/cni/networks/podnet" // in the test's own namespace
	if err := os.MkdirAll(dir, 0o755); err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "10.1.0.2"), []byte("web-1\r\neth0"), 0o600); err != nil {
		log.Fatal(err)
	}

	after, err := cnitest.Audit(ctx, cnitest.Options{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(cnitest.Diff(before, after))
	if err := os.RemoveAll("/var/lib/cni"); err != nil {
		log.Fatal(err)
	}
	// Output:
	// + dir /var/lib/cni/networks/
	// + dir /var/lib/cni/networks/podnet/
	// + file /var/lib/cni/networks/podnet/10.1.0.2 sha256:beb613d3879fad1d
}
