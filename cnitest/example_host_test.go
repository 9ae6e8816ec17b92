package cnitest_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/exec"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/cnitest"
)

// This is the TestMain of a package whose tests need a host.
func ExampleMain() {
	var m *testing.M // TestMain's

	os.Exit(cnitest.Main(m, cnitest.BuildReferencePlugins(), cnitest.SkipHosts()))
}

// A container loses its bridge in a test, and gets it back. At the end of the test nothing may
// be left.
func ExampleHost() {
	var t *testing.T // the test's

	host := cnitest.Host(t, cnitest.WithReferencePlugins(), cnitest.AuditOnly())
	host.WriteConf("10-pods.conflist", `{"cniVersion": "1.0.0", "name": "pods", "plugins": [
		{"type": "bridge", "bridge": "pods0", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}]],
		 "dataDir": "`+host.Dir+`"}}]}`)
	rt := host.Runtime(cni.WithDefaultConf)
	if _, err := rt.Setup(t.Context(), "web-1", cnitest.Container(t)); err != nil {
		t.Fatal(err)
	}
	if err := host.Do(exec.Command("ip", "link", "del", "pods0").Run); err != nil {
		t.Fatal(err)
	}
	if _, err := rt.Repair(t.Context(), "web-1", cni.RepairOptions{}); err != nil {
		t.Error(err)
	}
	if err := rt.Remove(t.Context(), "web-1", ""); err != nil {
		t.Error(err)
	}
}

// The executables of the reference plugins, for a host that is not a test's.
func ExampleReferencePlugins() {
	dir, err := cnitest.ReferencePlugins(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(dir)
}

// A host that only answers: its plugins follow a script, and nothing is looked at afterwards.
func ExampleTestHost_Plugin() {
	var t *testing.T // the test's

	host := cnitest.Host(t, cnitest.WithoutAudit())
	host.Plugin("cloud", cnitest.Script{"ADD": {Err: types.NewError(types.ErrTryAgainLater, "busy", "")}})
	host.WriteConf("10-pods.conflist", `{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "cloud"}]}`)
	_, err := host.Runtime(cni.WithDefaultConf).Setup(t.Context(), "web-1", cnitest.Container(t))
	if err == nil {
		t.Error("the plugin has not refused")
	}
}
