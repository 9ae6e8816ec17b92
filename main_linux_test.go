package cni_test

import (
	"context"
	"os"
	"runtime"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/testhost"
)

// init reserves the leading thread for TestMain. A test on it that changed its
// network namespace would change the process's.
func init() { runtime.LockOSThread() }

// TestMain runs the tests in their own namespaces. It builds the reference
// plugins first, outside, where there is a network. Started by a test, the test
// binary is another runtime.
func TestMain(m *testing.M) {
	testhost.OtherRuntime(map[string]func(context.Context, *cni.Runtime, testhost.Job) error{"REAP": attachAndReap})
	os.Exit(refplugins.Main(m, refplugins.WithScripted()))
}

func attachAndReap(ctx context.Context, r *cni.Runtime, j testhost.Job) error {
	if _, err := r.Setup(ctx, j.ID, j.NetNS); err != nil {
		return err
	}
	err := r.Reap(ctx)
	return err
}
