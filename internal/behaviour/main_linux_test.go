package behaviour_test

import (
	"context"
	"os"
	"runtime"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/refplugins"
	"github.com/embedcni/cni/internal/sandbox"
	"github.com/embedcni/cni/internal/testhost"
)

// init reserves the leading thread for TestMain. A test on it that changed its
// network namespace would change the process's.
func init() { runtime.LockOSThread() }

// TestMain runs the tests in their own namespaces. It builds the reference
// plugins first, outside, where there is a network. Started by a test, the test
// binary is another runtime, or one process of a crowd.
func TestMain(m *testing.M) {
	testhost.OtherRuntime(map[string]func(context.Context, *cni.Runtime, testhost.Job) error{
		"ADD WEB": addWeb, addChosen: addWithChosen, readyWithoutNFTables: askWithoutNFTables, replaceVerb: replaceMain,
		"LIFE": life, daemonVerb: daemonMain, restartVerb + "ADD": restartMain, restartVerb + "RECOVER": restartMain,
	})
	if os.Getenv(listenEnv) != "" {
		listenMain()
	}
	if os.Getenv(sevenEnv) != "" {
		sevenMain()
	}
	if os.Getenv(crowdProcess) != "" {
		os.Exit(crowdMain())
	}
	os.Exit(refplugins.Main(m, refplugins.WithScripted(), sandbox.Shards(4)))
}
