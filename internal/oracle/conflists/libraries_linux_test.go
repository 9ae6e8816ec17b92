package conflists

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

// ifName is the name of each container's interface.
const ifName = "eth0"

// container is a container with a port of its own.
type container struct {
	id, path string
	port     int32
}

// args are those that containerd and CRI-O give, in the order of their names.
func (c container) args() [][2]string {
	return [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_INFRA_CONTAINER_ID", c.id}, {"K8S_POD_NAME", "web-7"},
		{"K8S_POD_NAMESPACE", "shop"}, {"K8S_POD_UID", "5a3f8d1e-0c77-4f0b-9d55-3f1d5f6a2b10"}}
}

// wire are the capabilities of CONVENTIONS.md, and containerd's, as plugins get them.
func (c container) wire() map[string]any {
	return map[string]any{
		"portMappings": []map[string]any{{"hostPort": c.port, "containerPort": 80, "protocol": "tcp"},
			{"hostPort": c.port, "containerPort": 53, "protocol": "udp", "hostIP": "192.0.2.1"}},
		"bandwidth": map[string]any{"ingressRate": 8000000, "ingressBurst": 16000000, "egressRate": 4000000, "egressBurst": 8000000},
		"ipRanges": [][]map[string]any{{{"subnet": "10.90.0.0/24", "rangeStart": "10.90.0.10", "rangeEnd": "10.90.0.20", "gateway": "10.90.0.1"}},
			{{"subnet": "fd90::/64"}}},
		"dns": map[string]any{"servers": []string{"10.96.0.10"}, "searches": []string{"shop.svc.cluster.local"}, "options": []string{"ndots:5"}},
		"ips": []string{"10.90.0.15/24", "fd90::15/64"}, "mac": "c2:11:22:33:44:55", "aliases": []string{"web", "front"},
		"deviceID": "0000:04:00.5", "infinibandGUID": "c2:11:22:33:44:55:66:77", "cgroupPath": "/kubepods/burstable/pod5a3f8d1e",
		"io.kubernetes.cri.pod-annotations": map[string]string{"k8s.v1.cni.cncf.io/networks": `[{"name": "blue"}]`, "quoted": "<&>"},
	}
}

// ourOptions are the arguments and capabilities by this library's options, those that it has.
func (c container) ourOptions() []cni.NamespaceOpts {
	labels := map[string]string{}
	for _, arg := range c.args() {
		labels[arg[0]] = arg[1]
	}
	opts := []cni.NamespaceOpts{cni.WithLabels(labels)}
	wire := c.wire()
	for _, name := range []string{"ips", "mac", "aliases", "deviceID", "infinibandGUID", "io.kubernetes.cri.pod-annotations"} {
		opts = append(opts, cni.WithCapability(name, wire[name]))
	}
	return append(opts,
		cni.WithCapabilityPortMap([]cni.PortMapping{{HostPort: c.port, ContainerPort: 80, Protocol: "tcp"},
			{HostPort: c.port, ContainerPort: 53, Protocol: "udp", HostIP: "192.0.2.1"}}),
		cni.WithCapabilityBandWidth(cni.BandWidth{IngressRate: 8e6, IngressBurst: 16e6, EgressRate: 4e6, EgressBurst: 8e6}),
		cni.WithCapability("ipRanges", [][]cni.IPRanges{
			{{Subnet: "10.90.0.0/24", RangeStart: "10.90.0.10", RangeEnd: "10.90.0.20", Gateway: "10.90.0.1"}}, {{Subnet: "fd90::/64"}}}),
		cni.WithCapabilityDNS(cni.DNS{Servers: []string{"10.96.0.10"}, Searches: []string{"shop.svc.cluster.local"}, Options: []string{"ndots:5"}}),
		cni.WithCapabilityCgroupPath("/kubepods/burstable/pod5a3f8d1e"))
}

// library is one of the two that run the plugins.
type library struct {
	add    func(container) (*types100.Result, error)
	check  func(container) error
	status func() error
	gc     func(keep container) error
	del    func(container) error
	cache  string // the directory of libcni's cache
	name   string // of the network
}

// cached returns what the cache has of a container, nil if nothing.
func (l library) cached(t *testing.T, c container) map[string]any {
	t.Helper()
	path := filepath.Join(l.cache, "results", l.name+"-"+c.id+"-"+ifName)
	data, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return nil
	}
	expect.NoError(t, err)
	expect.Same(t, "mode of "+path, expect.Value(os.Stat(path))(t).Mode(), 0o600)
	var file struct{ Config []byte } // encoded, as its spelling may differ
	expect.NoError(t, json.Unmarshal(data, &file))
	whole := decoded(t, data)
	whole["config"] = decoded(t, file.Config)
	return whole
}

// pluginDirs are those of both libraries. The first has no plugins.
func pluginDirs(h *testhost.Host) []string { return []string{h.Path("none"), h.Path("bin")} }

// isList reports whether a file has a list of plugins.
func isList(path string) bool { return filepath.Ext(path) == ".conflist" }

// ours is this library with the configuration of a file. It is given each time what libcni is:
// the arguments of a DEL that has no record too.
func ours(h *testhost.Host, path string) library {
	h.T.Helper()
	load := cni.WithConfFile(path)
	if isList(path) {
		load = cni.WithConfListFile(path)
	}
	r := h.Runtime(load, cni.WithPluginDir(pluginDirs(h)), cni.WithStateDir(filepath.Join(filepath.Dir(path), "state")), cni.WithLogger(slog.New(slog.DiscardHandler)))
	ctx := context.Background()
	return library{
		add: func(c container) (*types100.Result, error) {
			result, err := r.Setup(ctx, c.id, c.path, c.ourOptions()...)
			if err != nil {
				return nil, err
			}
			return result.Raw()[0], nil
		},
		check:  func(c container) error { return r.Check(ctx, c.id, c.path, c.ourOptions()...) },
		status: r.Status,
		gc: func(keep container) error {
			return expect.Reported(r.GC(ctx, cni.GCOptions{Keep: []string{keep.id}}))
		},
		del:   func(c container) error { return r.Remove(ctx, c.id, c.path, c.ourOptions()...) },
		cache: filepath.Join(filepath.Dir(path), "state"), name: r.GetConfig().Networks[0].Config.Name,
	}
}

// theirs is libcni, as its users call it, with the network of a name in a directory.
func theirs(h *testhost.Host, dir, name string) library {
	h.T.Helper()
	list := expect.Value(libcni.LoadNetworkConf(dir, name))(h.T)
	l := library{cache: filepath.Join(dir, "libcni"), name: name}
	c := libcni.NewCNIConfigWithCacheDir(pluginDirs(h), l.cache, nil)
	ctx := context.Background()
	conf := func(c container) *libcni.RuntimeConf {
		return &libcni.RuntimeConf{ContainerID: c.id, NetNS: c.path, IfName: ifName, Args: c.args(), CapabilityArgs: c.wire()}
	}
	l.add = func(of container) (*types100.Result, error) {
		result, err := c.AddNetworkList(ctx, list, conf(of))
		if err != nil {
			return nil, err
		}
		return types100.NewResultFromResult(result)
	}
	l.check = func(of container) error { return c.CheckNetworkList(ctx, list, conf(of)) }
	l.status = func() error { return c.GetStatusNetworkList(ctx, list) }
	l.gc = func(keep container) error {
		return c.GCNetworkList(ctx, list, &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: keep.id, IfName: ifName}}})
	}
	l.del = func(of container) error { return c.DelNetworkList(ctx, list, conf(of)) }
	return l
}
