package macvlan

import (
	"context"
	"os"
	"testing"

	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/sandbox"
)

func TestMain(m *testing.M) {
	os.Exit(sandbox.Main(m, sandbox.Before(func() ([]string, error) {
		return refplugins.Env(context.Background(), os.Stderr)
	})))
}
