package cli

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/cnitest"
	"github.com/embedcni/cni/guard"
)

const cloud = `{"cniVersion": "1.1.0", "name": "vpc", "plugins": [{"type": "cloud"}]}`

// TestSessionOfTrouble is about plugins that fail.
func TestSessionOfTrouble(t *testing.T) {
	s := newSession(t)
	s.host.WriteConf("20-vpc.conflist", cloud)
	s.say("ready")
	s.host.Plugin("cloud", cnitest.Script{})
	s.note("somebody installs the plugin")
	s.say("ready")
	s.want(exitOK, "add", "vpc", cnitest.Container(t), "--id", "web")
	s.host.Plugin("cloud", cnitest.Script{
		"CHECK":  {Err: &types.Error{Code: 100, Msg: "the interface is on another machine"}},
		"DEL":    {Err: &types.Error{Code: 101, Msg: "the cloud does not answer"}},
		"STATUS": {Err: &types.Error{Code: 50, Msg: "no address is free"}},
	})
	s.note("the plugin has trouble")
	s.say("ready")
	s.say("status vpc")
	s.say("health")
	s.say("repair web --yes")
	s.say("remove web")
	s.say("list")
	s.say("show web")
	s.say("cleanup web")
	s.say("cleanup web --yes")
	s.say("list")
	s.host.Plugin("cloud", cnitest.Script{})
	s.compare("trouble.txt")
}

// TestSessionOfDamage is about records that nobody can read, and holds.
func TestSessionOfDamage(t *testing.T) {
	s := newSession(t)
	s.want(exitOK, "add", "pods", cnitest.Container(t), "--id", "web")
	if err := (guard.Hold{ContainerID: "web", Reason: "the bridge moves"}).Begin(context.Background(), s.host.Runtime()); err != nil {
		t.Fatal(err)
	}
	s.on("ip link del pods0")
	s.note("an administrator holds the container, and deletes the bridge")
	s.say("repair web")
	s.say("repair web --yes")
	s.say("repair web --yes --held")
	records, err := filepath.Glob(filepath.Join(s.host.StateDir, "embedcni", "attachments", "*.json"))
	if err != nil || len(records) != 1 {
		t.Fatal(records, err)
	}
	whole, err := os.ReadFile(records[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(records[0], whole[:len(whole)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	s.note("half of the record is lost")
	for _, line := range []string{"list", "list --all-owners", "show web", "health", "health web", "repair web --yes", "remove web", "cleanup web", "cleanup web pods eth0"} {
		s.say(line)
	}
	s.say("cleanup web pods eth0 --owner=")
	s.say("remove web --owner=")
	s.compare("damage.txt")
}
