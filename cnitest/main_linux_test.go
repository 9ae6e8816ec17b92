package cnitest_test

import (
	"os"
	"runtime"
	"testing"

	"github.com/embedcni/cni/internal/refplugins"
)

// init keeps the leading thread to TestMain: a test that took it to another
// network namespace would take the process's there.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) { os.Exit(refplugins.Main(m)) }
