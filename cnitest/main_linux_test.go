package cnitest_test

import (
	"context"
	"os"
	"runtime"
	"testing"

	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/sandbox"
)

// init keeps the leading thread to TestMain: a test that took it to another
// network namespace would take the process's there.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) {
	os.Exit(sandbox.Main(m, sandbox.Before(func() ([]string, error) {
		return refplugins.Env(context.Background(), os.Stderr)
	})))
}
