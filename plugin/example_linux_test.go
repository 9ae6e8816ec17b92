package plugin_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"sync"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

// names is a plugin for a name server in the same program. It remembers the
// addresses that earlier plugins gave a container, under the container's ID and
// the domain of its configuration.
type names struct {
	mu    sync.Mutex
	known map[string][]string
}

func (n *names) Add(_ context.Context, r *plugin.Request) (*types100.Result, error) {
	name, err := name(r)
	if err != nil {
		return nil, err
	}
	result, err := r.Chained() // results of the plugins before it
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.known[name] = addresses(result)
	return result, nil
}

// Del succeeds for an unknown name: it may be called twice, and after an Add
// that failed.
func (n *names) Del(_ context.Context, r *plugin.Request) error {
	name, err := name(r)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.known, name)
	return nil
}

func (n *names) Check(_ context.Context, r *plugin.Request) error {
	name, err := name(r)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, ok := n.known[name]; !ok {
		return plugin.Errorf(types.ErrUnknownContainer, "nobody knows %s", name)
	}
	return nil
}

func name(r *plugin.Request) (string, error) {
	var conf struct {
		Domain string `json:"domain"`
	}
	if err := r.Decode(&conf); err != nil {
		return "", err
	}
	if conf.Domain == "" {
		return "", plugin.Errorf(types.ErrInvalidNetworkConfig, "plugin %q needs a domain", r.Type)
	}
	return r.ContainerID + "." + conf.Domain, nil
}

func addresses(result *types100.Result) []string {
	var all []string
	for _, ip := range result.IPs {
		all = append(all, ip.Address.IP.String())
	}
	return all
}

// A plugin of the caller's, registered by name, in a chain behind a built-in
// one. No executable is needed.
func Example() {
	const podnet = `{"cniVersion": "1.0.0", "name": "podnet", "plugins": [
		{"type": "loopback"},
		{"type": "names", "domain": "example"}
	]}`
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	n := &names{known: map[string][]string{}}
	rt, err := cni.New(cni.WithPlugin("names", n), cni.WithPluginDir(nil), cni.WithStateDir(dir), cni.WithConfListBytes([]byte(podnet)))
	if err != nil {
		log.Fatal(err)
	}
	for _, p := range rt.GetConfig().Networks[0].Config.Plugins {
		fmt.Println(p.Network.Type, "is", p.Kind)
	}

	ctx, path := context.Background(), filepath.Join(dir, "ns")
	ns, err := netns.Create(path)
	if err != nil {
		log.Fatal(err)
	}
	defer ns.Close()
	if _, err := rt.Setup(ctx, "web", path); err != nil {
		log.Fatal(err)
	}
	fmt.Println(n.known)
	fmt.Println("check:", rt.Check(ctx, "web", path))
	if err := rt.Remove(ctx, "web", path); err != nil {
		log.Fatal(err)
	}
	fmt.Println(n.known)
	if err := netns.Remove(path); err != nil {
		log.Fatal(err)
	}
	// Output:
	// loopback is built in
	// names is registered
	// map[web.example:[127.0.0.1 ::1]]
	// check: <nil>
	// map[]
}
