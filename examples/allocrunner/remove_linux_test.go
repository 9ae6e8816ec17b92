package main

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/cnitest"
	"github.com/embedcni/cni/internal/expect"
)

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

// TestRetry: a plugin fails for a while. The loop removes the job's network once it works.
func TestRetry(t *testing.T) {
	host := cnitest.Host(t)
	host.Plugin("tenant", cnitest.Script{"DEL": {Err: types.NewError(types.ErrTryAgainLater, "busy", "")}})
	rt := host.Runtime(cni.WithOwner(owner), cni.WithConfListBytes([]byte(
		`{"cniVersion": "1.0.0", "name": "jobs", "plugins": [{"type": "tenant"}]}`)))
	expect.NoError(t, expect.Err(rt.Setup(t.Context(), "web", cnitest.Container(t))))
	expect.Fails(t, "removed although the plugin fails", remove(t.Context(), rt, "web"))

	ctx, cancel := context.WithCancel(t.Context())
	ticks, ended := make(chan time.Time), make(chan error, 1)
	go func() { ended <- retry(ctx, rt, ticks) }()
	ticks <- time.Now()
	ticks <- time.Now() // the first round has ended
	attached := expect.Value(rt.Attachments())(t)
	expect.Must(t, len(attached) == 1 && attached[0].Failures > 0, "attached: %v", attached)
	host.Plugin("tenant", cnitest.Script{})
	expect.Eventually(t, "the removal", func() bool { // a second after the last failure
		ticks <- time.Now()
		return len(expect.Value(rt.Attachments())(t)) == 0
	})
	cancel()
	expect.NoError(t, expect.Await(t, "the end of the loop", ended))
}
