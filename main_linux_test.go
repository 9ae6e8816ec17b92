package cni_test

import (
	"context"
	"os"
	"testing"

	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/sandbox"
	"github.com/embedcni/cni/internal/scripted"
)

// TestMain runs the tests in namespaces of their own, with the reference
// plugins built beforehand, outside, where there is a network. Started as a
// plugin, the test binary is one; started as one process of a crowd, that.
func TestMain(m *testing.M) {
	if scripted.IsPlugin() {
		os.Exit(scripted.Main())
	}
	if os.Getenv(crowdProcess) != "" {
		os.Exit(crowdMain())
	}
	os.Exit(sandbox.Main(m, sandbox.Before(func() ([]string, error) {
		return refplugins.Env(context.Background(), os.Stderr)
	})))
}

// referencePlugins is the directory of the reference plugins.
func referencePlugins(t testing.TB) string {
	t.Helper()
	dir, err := refplugins.Dir(context.Background(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
