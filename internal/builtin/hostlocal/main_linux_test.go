package hostlocal

import (
	"context"
	"os"
	"testing"

	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/sandbox"
)

func TestMain(m *testing.M) {
	if base, ok := os.LookupEnv(victim); ok {
		os.Exit(workUntilKilled(base))
	}
	os.Exit(sandbox.Main(m, sandbox.Before(func() ([]string, error) {
		return refplugins.Env(context.Background(), os.Stderr)
	})))
}
