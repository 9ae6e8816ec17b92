package cni_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/plugin"
)

// A program that brings its plugins and its network with it needs no file on the host.
func ExampleNew() {
	rt, err := cni.New(
		cni.WithBuiltinPlugins(),
		cni.WithConfListBytes([]byte(`{"cniVersion": "1.0.0", "name": "pods", "plugins": [
			{"type": "bridge", "isGateway": true, "ipMasq": true,
			 "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}]]}}]}`)),
	)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(rt.GetConfig().Networks[0].Config.Name)
	// Output: pods
}

// Which plugin would run for each part of a network.
func ExampleRuntime_GetConfig() {
	rt, err := cni.New(cni.WithPluginDir(nil), cni.WithBuiltinFallback(), cni.WithLoNetwork,
		cni.WithConfListBytes([]byte(`{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "cloud"}]}`)))
	if err != nil {
		log.Fatal(err)
	}
	for _, n := range rt.GetConfig().Networks {
		for _, p := range n.Config.Plugins {
			fmt.Printf("%s: %s is %q\n", n.Config.Name, p.Network.Type, p.Kind)
		}
	}
	// Output:
	// cni-loopback: loopback is "built in"
	// pods: cloud is ""
}

// One network at a time, as go-cni's callers do it. WithNetwork selects networks by name.
func ExampleRuntime_Networks() {
	rt, err := cni.New(cni.WithLoNetwork, cni.WithConfListBytes([]byte(
		`{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge"}]}`)))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(rt.Networks()))
	// Output: 2
}

// A dry run of Setup: what each plugin would be asked.
func ExampleRuntime_Plan() {
	rt, err := cni.New(cni.WithConfListBytes([]byte(`{"cniVersion": "1.0.0", "name": "pods", "plugins": [
		{"type": "bridge"}, {"type": "portmap", "capabilities": {"portMappings": true}}]}`)))
	if err != nil {
		log.Fatal(err)
	}
	plan, err := rt.Plan("web-1", "/run/netns/web-1",
		cni.WithLabels(map[string]string{"K8S_POD_NAME": "web"}),
		cni.WithCapabilityPortMap([]cni.PortMapping{{HostPort: 8080, ContainerPort: 80}}))
	if err != nil {
		log.Fatal(err)
	}
	for _, a := range plan.Attachments {
		fmt.Println(a.Network, a.IfName, a.Args, a.Ports)
	}
	// Output: pods eth0 map[K8S_POD_NAME:web] [{8080 80 tcp }]
}

// The files have changed, and the program has heard of it: it loads them again. netconf.Watch
// does so by itself.
func ExampleRuntime_Reload() {
	dir, err := os.MkdirTemp("", "net.d")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	rt, err := cni.New(cni.WithPluginConfDir(dir))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(cni.IsCNINotInitialized(rt.Load(cni.WithAllConf))) // there is no file yet

	conf := []byte(`{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge"}]}`)
	if err := os.WriteFile(filepath.Join(dir, "10-pods.conflist"), conf, 0o644); err != nil {
		log.Fatal(err)
	}
	changes := rt.Reload()
	fmt.Println("added:", changes.Added, changes.Err)
	fmt.Println("unchanged:", rt.Reload().Unchanged)
	// Output:
	// true
	// added: [pods] <nil>
	// unchanged: true
}

// The files and directories to watch for changes.
func ExampleRuntime_Sources() {
	rt, err := cni.New(cni.WithPluginConfDir("/etc/cni/net.d"))
	if err != nil {
		log.Fatal(err)
	}
	if err := rt.Load(cni.WithDefaultConf); err != nil && !cni.IsCNINotInitialized(err) {
		log.Print(err) // no file yet is no mistake
	}
	files, dirs := rt.Sources()
	fmt.Println(files, dirs)
	// Output: [] [/etc/cni/net.d]
}

// Status is go-cni's question whether containers can be attached. Ready says more.
func ExampleRuntime_Status() {
	rt, err := cni.New(cni.WithMinNetworkCount(2), cni.WithLoNetwork)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(cni.IsCNINotInitialized(rt.Status()))
	// Output: true
}

// registrar is a plugin of a program's own: it has the names of containers in a server.
type registrar struct{ down bool }

func (*registrar) Add(_ context.Context, r *plugin.Request) (*types100.Result, error) {
	return r.Chained()
}

func (s *registrar) Del(context.Context, *plugin.Request) error {
	if s.down {
		return errors.New("the server does not answer")
	}
	return nil
}

func (*registrar) Check(context.Context, *plugin.Request) error { return nil }

// A plugin of the program's own runs in process. It has the methods Add, Del and Check; see
// package plugin.
func ExampleWithPlugin() {
	rt, err := cni.New(cni.WithPlugin("registrar", &registrar{}), cni.WithConfListBytes([]byte(
		`{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge"}, {"type": "registrar"}]}`)))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(rt.GetConfig().Networks[0].Config.Plugins[1].Kind)
	// Output: registered
}

// How long a plugin may take, and how often a Setup is tried.
func ExampleWithTimeouts() {
	_, err := cni.New(
		cni.WithTimeouts(cni.Timeouts{Add: time.Minute, Del: 30 * time.Second}), // for each plugin
		cni.WithRetry(cni.Retry{Attempts: 3, Delay: 200 * time.Millisecond}),
	)
	fmt.Println(err)
	// Output: <nil>
}

// Two programs on a host, each of which recovers and collects its own containers alone. The
// records of a program that is renamed, or of several nodes on one machine, stay apart.
func ExampleWithOwner() {
	rt, err := cni.New(cni.WithOwner("scheduler"), cni.WithStateDir("/var/lib/scheduler/cni"))
	if err != nil {
		log.Fatal(err)
	}
	c := rt.GetConfig()
	fmt.Println(c.Owner, c.StateDir)
	// Output: scheduler /var/lib/scheduler/cni
}

// A daemon in a namespace of its own runs plugins in that of process 1.
func ExampleWithHostNetNS() {
	rt, err := cni.New(cni.WithHostNetNS("/proc/1/ns/net"), cni.WithLoNetwork)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(rt.GetConfig().HostNetNS)
	// Output: /proc/1/ns/net
}
