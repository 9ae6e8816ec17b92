package tested

import (
	"os"
	"os/exec"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/cnitest"
)

const pods = `{"cniVersion": "1.0.0", "name": "pods", "plugins": [
	{"type": "bridge", "bridge": "pods0", "isDefaultGateway": true, "ipMasq": true,
	 "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}]]}}]}`

func TestMain(m *testing.M) { os.Exit(cnitest.Main(m)) }

func TestStartAndStop(t *testing.T) {
	host := cnitest.Host(t)
	host.WriteConf("10-pods.conflist", pods)
	rt := host.Runtime(cni.WithDefaultConf)
	program := New(rt) // takes an interface with the methods that it calls

	addr, err := program.Start(t.Context(), "web-1", cnitest.Container(t))
	if err != nil || addr.String() != "10.1.0.2" {
		t.Fatalf("started at %v: %v", addr, err)
	}
	// Break something: an administrator deletes the bridge.
	if err := host.Do(exec.Command("ip", "link", "del", "pods0").Run); err != nil {
		t.Fatal(err)
	}
	if err := program.Stop(t.Context(), "web-1"); err != nil {
		t.Error(err)
	}
}

func TestStartTriesAgain(t *testing.T) {
	fake, err := cnitest.NewFake(cni.WithConfListBytes([]byte(pods)))
	if err != nil {
		t.Fatal(err)
	}
	fake.Inject(cnitest.Fault{Method: "Setup", Err: cni.ErrPluginKilled, Times: 1})
	program := New(fake)
	if _, err := program.Start(t.Context(), "web-1", "/run/netns/web-1"); err != nil {
		t.Error(err)
	}
}
