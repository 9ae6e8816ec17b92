package main

import (
	"os"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/cnitest"
	"github.com/embedcni/cni/internal/expect"
)

func TestMain(m *testing.M) { os.Exit(cnitest.Main(m)) }

// TestRemoveByForce: a plugin of a third party is uninstalled while a job runs. Host checks
// that nothing is left.
func TestRemoveByForce(t *testing.T) {
	host := cnitest.Host(t)
	dir := t.TempDir()
	const tenant = "#!/bin/sh\ncase $CNI_COMMAND in\n" +
		`VERSION) echo '{"cniVersion": "1.0.0", "supportedVersions": ["1.0.0"]}' ;;` + "\n" +
		`ADD) cat >/dev/null; echo '{"cniVersion": "1.0.0"}' ;;` + "\nesac\n"
	expect.NoError(t, os.WriteFile(dir+"/tenant", []byte(tenant), 0o755))
	rt := host.Runtime(cni.WithOwner(owner), cni.WithPluginDir([]string{dir}), cni.WithConfListBytes([]byte(
		`{"cniVersion": "1.0.0", "name": "jobs", "plugins": [
			{"type": "bridge", "bridge": "jobs0", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.61.0.0/16"}]]}},
			{"type": "tenant"}]}`)))
	expect.NoError(t, expect.Err(rt.Setup(t.Context(), "web", cnitest.Container(t))))
	expect.NoError(t, os.Remove(dir+"/tenant"))
	if err := rt.Remove(t.Context(), "web", ""); err == nil {
		t.Fatal("removed without the plugin")
	}
	expect.NoError(t, remove(t.Context(), rt, "web"))
	if attached, err := rt.Attachments(); err != nil || len(attached) != 0 {
		t.Errorf("attached: %v, %v", attached, err)
	}
}
