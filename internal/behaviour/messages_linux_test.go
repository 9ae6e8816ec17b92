package behaviour_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/scripted"
	"github.com/embedcni/cni/internal/testhost"
	"github.com/embedcni/cni/netns"
)

// says compares the whole text of an error. DIR stands for the stage's directory.
func (s *stage) says(what string, err error, want string) {
	s.T.Helper()
	expect.Must(s.T, err != nil, "%s: no error", what)
	expect.Same(s.T, what, strings.ReplaceAll(err.Error(), strings.TrimSuffix(s.Path(""), "/"), "DIR"), want)
}

// without calls f on a thread that lacks capabilities, and ends with it.
func without(f func() error, capabilities ...int) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		_, err := testhost.Without(capabilities...)
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// TestMessagesOfArguments: each says what to give instead.
func TestMessagesOfArguments(t *testing.T) {
	s, mapping := portStage(t)
	idle := func(plugin string) *cni.Runtime {
		return s.Runtime(cni.WithLoNetwork, cni.WithPlugin("idle", testhost.Idle{}),
			cni.WithConfListBytes([]byte(`{"cniVersion": "1.0.0", "name": "net", "plugins": [`+plugin+`]}`)))
	}
	deaf := idle(`{"type": "idle"}`)
	path := s.Container("c1")
	for _, tt := range []struct {
		r    *cni.Runtime
		path string
		opts []cni.NamespaceOpts
		want string
	}{
		{deaf, "", nil, "no path given; name a namespace, or have one made with WithNewNetNS: invalid network namespace"},
		{mapping(), path, []cni.NamespaceOpts{cni.WithCapabilityPortMap([]cni.PortMapping{{ContainerPort: 80}})},
			`network "net": capability portMappings: port mapping :0->80/tcp: host port 0 is not 1 to 65535; WithPorts chooses a port: invalid argument`},
		{deaf, path, []cni.NamespaceOpts{cni.WithPorts(cni.Port{ContainerPort: 80})},
			`ports are asked for, and no plugin of network "net" declares the capability portMappings: add portmap with "capabilities": {"portMappings": true}: invalid argument`},
		{idle(`{"type": "portmap"}`), path, []cni.NamespaceOpts{cni.WithPorts(cni.Port{ContainerPort: 80})},
			`ports are asked for, and no plugin of network "net" declares the capability portMappings: add "capabilities": {"portMappings": true} to plugin "portmap" of network "net": invalid argument`},
		{deaf, path, []cni.NamespaceOpts{cni.WithCapabilityMAC("c2:11:22:33:44:55")},
			`capability "mac" is declared by no plugin of network "net": add a plugin that reads it (bridge, macvlan, tap, tuning) with "capabilities": {"mac": true}: invalid argument`},
	} {
		_, err := tt.r.Setup(t.Context(), "c1", tt.path, tt.opts...)
		s.says("Setup", err, `set up container "c1": `+tt.want)
	}
	res := testhost.MustSetUp(t, mapping(), "c1", path, cni.WithPorts(cni.Port{Label: "http", ContainerPort: 80}))
	got(t, res, "http") // WithPorts chooses one
}

// withoutNetNS is the job of a process that cannot make network namespaces.
const withoutNetNS = "make network namespaces without the capability"

func makeNoNetNS(ctx context.Context, r *cni.Runtime, j testhost.Job) error {
	return errors.Join(errOf(netns.New()), errOf(netns.Create(j.NetNS)), errOf(r.Setup(ctx, "c1", "", cni.WithNewNetNS())))
}

// TestMessagesOfMissingCapabilities name the one that the kernel asks for.
func TestMessagesOfMissingCapabilities(t *testing.T) {
	s := newStage(t)
	const refused = "operation not permitted: it needs the capability CAP_SYS_ADMIN"
	child := testhost.Job{Verb: withoutNetNS, StateDir: s.Path("state"), PluginDir: s.Path("bin"), HostNetNS: s.Path("netns", "host"),
		NetNS: s.Path("new"), Conf: s.Network("net", "1.0.0", "p")}.Command(t)
	var said []byte
	expect.NoError(t, without(func() (err error) {
		if err = unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_SYS_ADMIN, 0, 0, 0); err == nil {
			said, err = child.CombinedOutput()
		}
		return err
	}))
	expect.Same(t, "a process without it", string(said), "create network namespace: unshare: "+refused+
		"\ncreate network namespace \""+s.Path("new")+"\": unshare: "+refused+
		"\nset up container \"c1\": create network namespace: unshare: "+refused)
	r := s.Runtime(cni.WithBuiltinPlugins(), cni.WithConfListBytes([]byte(`{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "portmap", "capabilities": {"portMappings": true}}]}`)))
	s.says("Ready", without(func() error { return r.Ready(t.Context()) }, unix.CAP_NET_ADMIN), "not ready: plugins need CAP_NET_ADMIN, which this process lacks; "+
		"packet filter: read the number of the last change of the rules: operation not permitted: it needs the capability CAP_NET_ADMIN in the user namespace that owns the network namespace")
}

// TestMessageOfAnInterfaceThatIsTaken says whose it is.
func TestMessageOfAnInterfaceThatIsTaken(t *testing.T) {
	s, r, path := oneNetwork(t, "bridge") // the first plugin is known to make an interface
	testhost.MustSetUp(t, r, "c1", path)
	s.AddLink("c1", "eth0")
	const head = `set up container "c2": interface eth0 of network "net": DIR/netns/c1 has an eth0 already, `
	_, err := r.Setup(t.Context(), "c2", path)
	s.says("of a container", err, head+`that of container c1 on network "net": attachment already exists`)
	expect.Is(t, err, cni.ErrAlreadyAttached)
	_, err = s.Runtime(cni.WithConfListBytes(s.Network("net", "1.0.0", "bridge")), cni.WithRecordDir(s.Path("elsewhere"))).Setup(t.Context(), "c2", path)
	s.says("of nobody", err, head+`which is in no container's record: attachment already exists`)
}

// TestMessageOfABrokenConfiguration has the file, the line and the column.
func TestMessageOfABrokenConfiguration(t *testing.T) {
	s := newStage(t)
	write(s.Host, "net.d/10-a.conflist", "{\n  \"name\": \"a\",\n}")
	write(s.Host, "net.d/20-b.conf", "{\"type\": 1}")
	r := s.Runtime(cni.WithPluginConfDir(s.Path("net.d")))
	const a = "error parsing configuration list: invalid character '}' looking for beginning of object key string at line 3, column 1"
	const b = "error parsing configuration: json: cannot unmarshal number into Go struct field PluginConf.type of type string at line 1, column 10"
	s.says("a directory", r.Load(cni.WithAllConf), "cni config load failed: no network config found in DIR/net.d that is valid; "+
		"DIR/net.d/10-a.conflist: "+a+"; DIR/net.d/20-b.conf: "+b+": invalid cni config: cni plugin not initialized: failed to load cni config")
	s.says("a file", r.Load(cni.WithConfListFile(s.Path("net.d/10-a.conflist"))),
		"cni config load failed: DIR/net.d/10-a.conflist: "+a+": invalid cni config: failed to load cni config")
	s.says("bytes", r.Load(cni.WithConf([]byte(`{"type": 1}`))), "cni config load failed: "+b+": invalid cni config: failed to load cni config")
}

// TestMessageOfAKilledPlugin says it once.
func TestMessageOfAKilledPlugin(t *testing.T) {
	s, _, path := oneNetwork(t, "p")
	s.On("p", "ADD", scripted.Action{Hang: true})
	expect.Limited(300*time.Millisecond, func(limit time.Duration) bool {
		r := s.Runtime(cni.WithConfListBytes(s.Network("net", "1.0.0", "p")), cni.WithTimeouts(cni.Timeouts{Add: limit}))
		_, err := r.Setup(t.Context(), "c1", path)
		expect.Is(t, err, context.DeadlineExceeded)
		if err != nil && strings.Contains(err.Error(), "not started") && limit < expect.Patience/4 {
			return true
		}
		s.says("Setup", err, fmt.Sprintf(`add network "net" of container c1, interface eth0: plugin type="p" failed (add): DIR/bin/p killed: took longer than the %v that a plugin has for ADD (see WithTimeouts)`, limit))
		return false
	})
}

// TestMessagesOfADamagedRecord name the call that mends it, which does.
func TestMessagesOfADamagedRecord(t *testing.T) {
	s, r, path := oneNetwork(t, "p")
	testhost.MustSetUp(t, r, "c1", path)
	spoilBase(s.Host, "c1", "{")
	record := "DIR" + strings.TrimPrefix(s.RecordFile("c1"), strings.TrimSuffix(s.Path(""), "/")) + ".json"
	damage := record + ": damaged attachment record: malformed line; Remove detaches the container and deletes the record"
	s.says("Lookup", errOf(r.Lookup("c1")), "look up container c1: "+damage)
	s.says("SetMetadata", r.SetMetadata(t.Context(), "c1", map[string]string{"a": "b"}), `set metadata of container "c1": `+damage)
	s.says("Check", r.Check(t.Context(), "c1", path), `check container "c1": `+damage)
	expect.NoError(t, r.Remove(t.Context(), "c1", path))
	expect.Is(t, errOf(r.Lookup("c1")), cni.ErrNotAttached)
}
