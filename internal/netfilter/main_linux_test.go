package netfilter

import (
	"context"
	"os"
	"testing"

	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/sandbox"
)

func TestMain(m *testing.M) {
	if os.Getenv(raceVariable) != "" {
		os.Exit(m.Run()) // it was started inside
	}
	if id := os.Getenv(addVariable); id != "" {
		os.Exit(addInProcess(id))
	}
	os.Exit(sandbox.Main(m, sandbox.Before(func() ([]string, error) {
		return refplugins.Env(context.Background(), os.Stderr)
	})))
}
