package cni_test

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/embedcni/cni"
)

// TestRecoverWaitsForWhatAPluginBuiltInHasStarted: what an iptables-restore of a
// killed runtime puts in after Recover has looked would stay for ever. The tool
// itself dies with the runtime; what it has started in its turn holds the lock.
func TestRecoverWaitsForWhatAPluginBuiltInHasStarted(t *testing.T) {
	real, err := exec.LookPath("iptables-nft-restore")
	wantNil(t, err)
	s := newStage(t)
	conf := []byte(fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "bridge", "bridge": "br-orphan",
		"ipMasq": true, "ipMasqBackend": "iptables", "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.24.0.0/24"}]]}}]}`, s.path("ipam")))
	gate := s.gate("restore")
	s.write("tools/iptables-nft-restore", fmt.Sprintf("#!/bin/sh\ncat %s\nexec %s \"$@\"\n", gate, real))
	wantNil(t, os.Chmod(s.path("tools", "iptables-nft-restore"), 0o755))
	path := s.container("c1")
	before := s.audit()

	process, done := s.process(conf, "ADD", "c1", path, "PATH="+s.path("tools")+":"+os.Getenv("PATH"))
	letGo := s.arrive(gate)
	wantNil(t, process.Kill())
	wantSame(t, "the runtime", await(t, "the end of the runtime", done), "signal: killed")

	r := s.runtime(cni.WithConfListBytes(conf))
	var report *cni.Report
	recovered := begin(func() (err error) { report, err = r.Recover(t.Context()); return err })
	wantSame(t, "waiting", s.blocked("/internal/lock.(*Space).lockSpan", 1), 1)
	select {
	case err := <-recovered:
		t.Errorf("Recover has returned %v beside what the runtime had started", err)
	default:
	}
	letGo()
	wantNil(t, await(t, "Recover", recovered))
	wantSame(t, "report", *report, removed)
	wantSame(t, "processes", children(t), nil)
	s.wantClean(before)
}
