package faults_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/nettest"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// parkLeader makes a namespace on the leading thread, like a program that locks
// a goroutine, unshares and never unlocks. Go leaves the thread there for good.
// work runs on other threads.
func parkLeader(path string, work func()) {
	err := unix.Unshare(unix.CLONE_NEWNET)
	if err == nil {
		err = unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "")
	}
	if err == nil {
		err = nettest.NoAddressDetection()
	}
	if err != nil {
		job{}.say(err)
	}
	go work()
	runtime.Goexit()
}

// life attaches a container, checks it, and removes it.
func (j job) life(ctx context.Context, r *cni.Runtime) error {
	if _, err := r.Setup(ctx, j.ID, j.NetNS, ports(j.Port)...); err != nil {
		return err
	}
	return errors.Join(hasEth0(j.ID, j.NetNS), r.Check(ctx, j.ID, j.NetNS), r.Remove(ctx, j.ID, j.NetNS))
}

func (l *living) leading() {
	path := l.netns("leading")
	expect.NoError(l.t, os.WriteFile(path, nil, 0o600))
	s := l.set
	if l.sometimes() {
		s.HostNetNS = "" // the one that the process was started in
	}
	l.ok("a program that made its container's namespace", elsewhere(l.t, job{Verb: "LEADER", ID: "leading", NetNS: path, Port: 20000, Settings: s}))
	l.wantNothing("it")
}

// hungAt waits until that plugin, and no other, works for the container.
func (l *living) hungAt(id, plugin string) {
	l.t.Helper()
	argument := []byte("\x00" + l.path("bin", plugin) + "\x00") // behind its interpreter
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		for _, pid := range processesOf(l.t, id) {
			if args, err := os.ReadFile("/proc/" + pid + "/cmdline"); err == nil && bytes.Contains(args, argument) {
				return
			}
		}
	}
	l.t.Fatalf("plugin %s does not run for %s", plugin, id)
}

// behindTheDead: a runtime is killed while its plugin hangs, and another
// program only knows Remove.
func (l *living) behindTheDead() {
	const id = "m21-dead"
	plugin, verb, path := l.some(chain()...), l.some("ADD", "DEL"), l.container(id)
	if verb == "DEL" {
		expect.NoError(l.t, elsewhere(l.t, job{Verb: "ADD", ID: id, NetNS: path, Port: 20000, Settings: l.set}))
	}
	l.spoil(plugin, fault{Verb: verb, Hang: true, Fork: l.sometimes(), At: l.some("before", "after")})
	dead := begin(l.t, job{Verb: verb, ID: id, NetNS: path, Port: 20000, Settings: l.set})
	l.hungAt(id, plugin)
	dead.kill()
	l.heal()
	begun := time.Now()
	l.remove(l.set, id, path)
	l.measured("Remove", time.Since(begun))
	if left := l.left(l.base, id); len(left) > 0 {
		l.say("left of a hanging %s of %s:\n%s", verb, plugin, strings.Join(left, "\n"))
	}
}

// other returns the configuration of the n-th network with l's kind of plugins.
func (l *living) other(n int) []byte {
	return []byte(strings.NewReplacer(`"net0"`, fmt.Sprintf(`"net%d"`, n), `"br0"`, fmt.Sprintf(`"br%d"`, n), `10.70.`, fmt.Sprintf(`10.%d.`, 70+n),
		`"isDefaultGateway": true`, `"isDefaultGateway": false`).Replace(string(l.set.Confs[0])))
}

// hanging makes the first ADD of the network hang, and returns its container.
func (l *living) hanging(conf []byte, network string) (changed []byte, plugin string) {
	l.t.Helper()
	hangs := fault{Verb: "ADD", Network: network, Hang: true, At: "before"}
	if l.kind == executables && l.sometimes() { // an unknown plugin in place of a known one
		plugin = l.some(chain()...)
		l.spoil(plugin, hangs)
		return conf, plugin
	}
	hangs.Real = filepath.Join(l.real, "tuning") // which does nothing with this configuration
	expect.NoError(l.t, errors.Join(os.Symlink(expect.Value(filepath.Abs(faultyPlugin))(l.t), l.path("bin", "own")), hangs.save(l.path("bin", "own"))))
	first := `"plugins": [`
	if l.sometimes() {
		return []byte(strings.Replace(string(conf), first, first+`{"type": "own"}, `, 1)), "own"
	}
	end := bytes.LastIndexByte(conf, ']')
	return fmt.Appendf(nil, `%s, {"type": "own"}%s`, conf[:end], conf[end:]), "own"
}

// behindTheHanging: a neighbour on a network with the same plugins, and one on
// an unrelated network.
func (l *living) behindTheHanging() {
	const id = "m21-hangs"
	one := func(conf []byte) settings {
		s := l.set
		s.Confs = [][]byte{conf}
		return s
	}
	pair := func(n int) settings {
		return one(fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "pair%d", "plugins": [{"type": "ptp",
			"ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.9%d.0.0/16"}]]}}]}`, n, l.path("ipam"), n))
	}
	timed := func(s settings, id string) time.Duration {
		l.t.Helper()
		path, begun := l.container(id), time.Now()
		l.ok("setup of "+id, expect.Err(l.runtime(s).Setup(context.Background(), id, path, ports(0)...)))
		return time.Since(begun)
	}
	conf, plugin := l.hanging(l.other(1), "net1")
	hung := begin(l.t, job{Verb: "ADD", ID: id, NetNS: l.container(id), Port: 20000, Settings: one(conf)})
	l.hungAt(id, plugin)
	other := timed(pair(0), "other")
	neighbour := timed(l.set, "neighbour")
	hung.kill()
	l.remove(one(conf), id, "")
	l.heal()
	// The expected time, from other networks without a first ADD.
	l.measured("other", other-timed(pair(1), "other2"))
	l.measured("neighbour", neighbour-timed(one(l.other(2)), "neighbour2"))
	for _, id := range []string{"other", "neighbour", "other2", "neighbour2"} {
		l.remove(l.set, id, l.netns(id))
	}
	l.wantNothing("all were removed")
}

// twoLists: when either is removed, the other keeps the shared objects.
func (l *living) twoLists() {
	l.set.Confs = append(l.set.Confs, []byte(strings.Replace(string(l.other(1)), `"net1"`, `"net0"`, 1)))
	result := expect.Value(l.setup(l.set, "both", ports(10000)...))(l.t)
	both := []string{"eth0", "eth1"}
	goes := l.random.IntN(2)
	stays := both[1-goes]
	home := l.settleAt("both", l.netns("both"), addressOf(result, stays))
	r, ctx := l.runtime(l.set), context.Background()
	only := func(ifName string) cni.NamespaceOpts { return cni.WithNetwork("net0", cni.WithInterfaceName(ifName)) }
	l.ok("remove "+both[goes], r.Remove(ctx, "both", l.netns("both"), only(both[goes])))
	l.ok("check", r.Check(ctx, "both", l.netns("both"), only(stays)))
	home.port = 10000
	home.inside = []string{"reached by address", "reached by connection", "reached by port"}
	home.look()
	home.close()
	home.left = true
	l.remove(l.set, "both", l.netns("both"))
	l.wantNothing("both were removed")
}

// neverRemoved: tasks end, and nobody removes their containers or recovers. The
// program attaches others, possibly after a restart, as faasd does.
func (l *living) neverRemoved() {
	r, ctx := l.runtime(l.set), context.Background()
	for n := range 3 {
		id := fmt.Sprint("gone", n)
		path, kill := testhost.NewTask(l.t)
		expect.Value(r.Setup(ctx, id, path, ports(int32(20000+n))...))(l.t)
		kill()
		if l.sometimes() {
			r = l.runtime(l.set)
		}
	}
	path := l.container("next")
	expect.Value(r.Setup(ctx, "next", path))(l.t)
	l.untilGone(func() error { return r.Check(ctx, "next", path) }, "gone0", "gone1", "gone2")
	l.ok("remove", r.Remove(ctx, "next", path))
	l.wantNothing("nobody removed anything but the last one")
	if pins := l.pins(); len(pins) > 0 {
		l.say("kept: %v", pins)
	}
}

// untilGone repeats the call until the containers have no records.
func (l *living) untilGone(call func() error, ids ...string) {
	l.t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		var here []string
		for _, id := range ids {
			if _, err := os.Stat(l.recordFile(id)); err == nil {
				here = append(here, id)
			}
		}
		if len(here) == 0 {
			return
		}
		if time.Now().After(end) {
			l.say("abandoned and still on record after a minute: %v", here)
			return
		}
		if err := call(); err != nil {
			l.say("a call beside the abandoned: %v", err)
			return
		}
	}
}

// pins returns the paths where this library pins namespaces.
func (l *living) pins() (kept []string) {
	l.t.Helper()
	for _, path := range expect.Value(filepath.Glob(l.path("state", "embedcni", "attachments", "netns", "*")))(l.t) {
		if isNetNS(l.t, path) {
			kept = append(kept, path)
		}
	}
	return kept
}

func isNetNS(t testing.TB, path string) bool {
	t.Helper()
	ns, err := netns.Open(path)
	if err != nil {
		return false
	}
	expect.NoError(t, ns.Close())
	return true
}

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
		expect.Succeeds(l.t, "Remove", os.Remove(goCNIState))
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
