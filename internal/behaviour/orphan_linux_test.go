package behaviour_test

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

// TestRecoverWaitsForABuiltInPluginsProcesses: rules that a killed
// runtime's iptables-restore adds after Recover has checked would stay for
// ever. The tool itself dies with the runtime, but its child processes hold the
// lock. It is the legacy variant, since the other one takes no process.
func TestRecoverWaitsForABuiltInPluginsProcesses(t *testing.T) {
	real, err := exec.LookPath("iptables-legacy-restore")
	expect.NoError(t, err)
	legacy, err := exec.LookPath("iptables-legacy")
	expect.NoError(t, err)
	s := newStage(t)
	conf := []byte(fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "bridge", "bridge": "br-orphan",
		"ipMasq": true, "ipMasqBackend": "iptables", "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.24.0.0/24"}]]}}]}`, s.Path("ipam")))
	gate := s.Gate("restore")
	s.Write("tools/iptables-legacy-restore", fmt.Sprintf("#!/bin/sh\ncat %s\nexec %s \"$@\"\n", gate, real))
	expect.NoError(t, os.Chmod(s.Path("tools", "iptables-legacy-restore"), 0o755))
	expect.NoError(t, os.Symlink(legacy, s.Path("tools", "iptables")))
	path := s.Container("c1")
	before := s.Audit()

	process, done := s.Process(conf, "ADD", "c1", path, "PATH="+s.Path("tools")+":"+os.Getenv("PATH"))
	letGo := s.Arrive(gate)
	expect.NoError(t, process.Kill())
	expect.Same(t, "the runtime", expect.Await(t, "the end of the runtime", done), "signal: killed")

	r := s.Runtime(cni.WithConfListBytes(conf))
	var report *cni.Report
	recovered := testhost.Begin(func() (err error) { report, err = r.Recover(t.Context()); return err })
	expect.Same(t, "waiting", s.Blocked("/internal/lock.(*Space).lockSpan", 1), 1)
	select {
	case err := <-recovered:
		t.Errorf("Recover returned %v beside the runtime's processes", err)
	default:
	}
	letGo()
	expect.NoError(t, expect.Await(t, "Recover", recovered))
	expect.Same(t, "report", *report, removed)
	expect.Same(t, "processes", testhost.Children(t), nil)
	s.WantClean(before)
}
