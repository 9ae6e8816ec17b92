package faults_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/netns"
)

// goCNIState is go-cni's directory, which no option changes.
const goCNIState = "/var/lib/cni"

// likeGoCNI gives the host go-cni's state directory, exclusively until done is
// called.
func (l *living) likeGoCNI() (done func()) {
	l.t.Helper()
	l.board.goCNI.Lock()
	err := errors.Join(os.MkdirAll(l.path("state"), 0o755), os.Symlink(l.path("state"), goCNIState))
	if err != nil {
		l.board.goCNI.Unlock()
		l.t.Fatal(err)
	}
	return func() {
		if err := os.Remove(goCNIState); err != nil {
			l.t.Error(err)
		}
		l.board.goCNI.Unlock()
	}
}

// byGoCNI acts as go-cni does: through libcni, with the installed plugins and
// the caller's options, in a program without records or pins.
func (l *living) byGoCNI(verb, id string, port int32) error {
	l.t.Helper()
	list, err := libcni.NetworkConfFromBytes(l.set.Confs[0])
	expect.NoError(l.t, err)
	config := libcni.NewCNIConfig([]string{l.path("bin")}, nil)
	rt := &libcni.RuntimeConf{ContainerID: id, NetNS: l.netns(id), IfName: "eth0", CapabilityArgs: map[string]any{
		"portMappings": []cni.PortMapping{{HostPort: port, ContainerPort: 80, Protocol: "tcp"}, {HostPort: port, ContainerPort: 53, Protocol: "udp"}}}}
	if verb == "ADD" {
		_, err = config.AddNetworkList(context.Background(), list, rt)
		return err
	}
	return config.DelNetworkList(context.Background(), list, rt)
}

// thereAndBack: a program migrates from go-cni with its containers, attaches
// others, removes all, and goes back.
func (l *living) thereAndBack() {
	defer l.likeGoCNI()()
	for n, id := range []string{"theirs", "ours", "again"} {
		port := int32(20000 + n)
		if l.container(id); id == "theirs" {
			expect.NoError(l.t, l.byGoCNI("ADD", id, port))
		} else {
			expect.Value(l.setup(l.set, id, ports(port)...))(l.t)
		}
	}
	l.ok("remove what go-cni attached", l.runtime(l.set).Remove(context.Background(), "theirs", l.netns("theirs"), ports(20000)...))
	for n, id := range []string{"ours", "again"} {
		l.ok("Remove", l.runtime(l.set).Remove(context.Background(), id, l.netns(id), ports(int32(20001+n))...))
	}
	if pins := l.pins(); len(pins) > 0 {
		l.say("kept although they were removed: %v", pins)
	}
	l.wantNothing("all were removed")
	l.ok("go-cni's ADD", l.byGoCNI("ADD", "ours", 20001))
	l.ok("go-cni's DEL", l.byGoCNI("DEL", "ours", 20001))
	l.wantNothing("go-cni has removed its own")
	for _, id := range []string{"theirs", "ours", "again"} {
		l.ends(id)
	}
}

// ends checks that a container's namespace ends with its path.
func (l *living) ends(id string) {
	l.t.Helper()
	ns := expect.Value(netns.Open(l.netns(id)))(l.t)
	name := fmt.Sprintf("net:[%d]", ns.ID().Ino)
	expect.NoError(l.t, errors.Join(ns.Close(), netns.Remove(l.netns(id))))
	mounts := expect.Value(os.ReadFile("/proc/self/mountinfo"))(l.t)
	if strings.Contains(string(mounts), name) {
		l.say("the namespace of %s is kept although its path is gone", id)
	}
}
