//lint:file-ignore SA1019 importers use the deprecated names.

package behaviour_test

import (
	"context"
	"errors"
	"testing"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/expect"
	"github.com/embedcni/cni/internal/testhost"
)

// This file uses the package as importers of go-cni do. The test is that it
// compiles. Each piece represents one importer.

// containerd: a table of options, an instance for each runtime handler, a fake.
type criService struct {
	netPlugin map[string]cni.CNI
}

func newCRIService(confDir string, binDirs []string, maxConf int) (*criService, error) {
	c := &criService{netPlugin: make(map[string]cni.CNI)}
	i, err := cni.New(cni.WithMinNetworkCount(2), cni.WithPluginConfDir(confDir),
		cni.WithPluginMaxConfNum(maxConf), cni.WithPluginDir(binDirs))
	if err != nil {
		return nil, err
	}
	c.netPlugin["default"] = i
	return c, nil
}

func (c *criService) cniLoadOptions() []cni.Opt {
	return []cni.Opt{cni.WithLoNetwork, cni.WithDefaultConf}
}

func criNamespaceOpts(id string, ports []cni.PortMapping) (opts []cni.NamespaceOpts) {
	opts = append(opts, cni.WithLabels(map[string]string{"K8S_POD_NAME": id}), cni.WithCapability("io.kubernetes.cri.pod-annotations", map[string]string{}))
	if len(ports) > 0 {
		opts = append(opts, cni.WithCapabilityPortMap(ports))
	}
	return append(opts, cni.WithCapabilityBandWidth(cni.BandWidth{IngressRate: 1}),
		cni.WithCapabilityDNS(cni.DNS{Servers: []string{"8.8.8.8"}}), cni.WithCapabilityCgroupPath("/kubepods"))
}

type sandboxMetadata struct {
	NetNSPath string
	CNIResult *cni.CNIResult
}

// fakeCNI has exactly the seven methods of containerd's, Nomad's and
// Concourse's fakes.
type fakeCNI struct {
	statusErr, loadErr error
	removed            []string
}

var _ cni.CNI = (*fakeCNI)(nil)

func (f *fakeCNI) Setup(context.Context, string, string, ...cni.NamespaceOpts) (*cni.Result, error) {
	return &cni.Result{Interfaces: map[string]*cni.Config{"eth0": {IPConfigs: []*cni.IPConfig{{}}}}}, nil
}

func (f *fakeCNI) SetupSerially(ctx context.Context, id, path string, opts ...cni.NamespaceOpts) (*cni.Result, error) {
	return f.Setup(ctx, id, path, opts...)
}

func (f *fakeCNI) Remove(_ context.Context, id string, _ string, _ ...cni.NamespaceOpts) error {
	f.removed = append(f.removed, id)
	return nil
}
func (f *fakeCNI) Check(context.Context, string, string, ...cni.NamespaceOpts) error { return nil }
func (f *fakeCNI) Load(...cni.Opt) error                                             { return f.loadErr }
func (f *fakeCNI) Status() error                                                     { return f.statusErr }
func (f *fakeCNI) GetConfig() *cni.ConfigResult                                      { return &cni.ConfigResult{} }

// BuildKit: the interface embedded beside a New of its own.
type buildkitProvider struct {
	cni.CNI
	root string
}

func newBuildkitProvider(root string, opts ...cni.Opt) (*buildkitProvider, error) {
	handle, err := cni.New(append([]cni.Opt{cni.WithPluginDir([]string{cni.DefaultCNIDir}), cni.WithInterfacePrefix("eth")}, opts...)...)
	if err != nil {
		return nil, err
	}
	return &buildkitProvider{CNI: handle, root: root}, nil
}

func (p *buildkitProvider) Close() error { return nil }

// Nomad: a constructor kept in a struct, a Load if it is not initialized, the
// first address by its own rule.
type nomadConfigurator struct {
	cni cni.CNI
}

func (c *nomadConfigurator) ensureInitialized() error {
	if err := c.cni.Status(); !cni.IsCNINotInitialized(err) {
		return err
	}
	return c.cni.Load(cni.WithConfListBytes([]byte(`{"name": "nomad", "plugins": [{"type": "bridge"}]}`)))
}

func (c *nomadConfigurator) address(res *cni.Result) (string, error) {
	for name, iface := range res.Interfaces {
		if iface != nil && len(iface.IPConfigs) > 0 && iface.Sandbox != "" {
			return name + iface.IPConfigs[0].IP.String(), nil
		}
	}
	for _, dns := range res.DNS {
		if len(dns.Nameservers) > 0 {
			return dns.Nameservers[0], nil
		}
	}
	return "", errors.New("no address")
}

// Concourse, faasd and nerdctl: aliases, constants, and options built by other
// functions.
func concourseOptions(conf []byte) []cni.CNIOpt {
	var opt cni.CNIOpt = cni.WithConfListBytes(conf)
	return []cni.CNIOpt{opt, cni.WithLoNetwork, cni.WithConfIndex(conf, 2)}
}

func faasdInit(dir string) (cni.CNI, error) {
	network, err := cni.New(cni.WithPluginConfDir(dir), cni.WithPluginDir([]string{cni.DefaultCNIDir}), cni.WithInterfacePrefix(cni.DefaultPrefix))
	if err != nil {
		return nil, err
	}
	if err := network.Load(cni.WithLoNetwork, cni.WithConfListFile(dir+"/10-openfaas.conflist")); err != nil {
		return network, err
	}
	return network, nil
}

func nerdctlArgs(ports []cni.PortMapping, mac string) []cni.NamespaceOpts {
	args := map[string]string{"IgnoreUnknown": "1"}
	return []cni.NamespaceOpts{cni.WithLabels(args), cni.WithArgs("MAC", mac), cni.WithCapabilityPortMap(ports),
		cni.WithCapabilityIPRanges([]cni.IPRanges{{Subnet: "10.4.0.0/24"}})}
}

func TestImportersCodeRuns(t *testing.T) {
	cri, err := newCRIService(t.TempDir(), []string{"/opt/cni/bin"}, 1)
	expect.NoError(t, err)
	if err := cri.netPlugin["default"].Load(cri.cniLoadOptions()...); !errors.Is(err, cni.ErrLoad) {
		t.Errorf("containerd: %v", err)
	}
	cri.netPlugin["default"] = &fakeCNI{}
	if n := len(criNamespaceOpts("p", []cni.PortMapping{{}})) + len(nerdctlArgs(nil, "")); n != 10 {
		t.Errorf("%d options", n)
	}
	buildkit, err := newBuildkitProvider("/", concourseOptions([]byte(testhost.ListOf("net")))[0])
	expect.NoError(t, err)
	if err := errors.Join(buildkit.Status(), buildkit.Close()); err != nil {
		t.Errorf("BuildKit: %v", err)
	}
	handle, err := cni.New()
	expect.NoError(t, err)
	nomad := &nomadConfigurator{cni: handle}
	if err := nomad.ensureInitialized(); err != nil || handle.Status() != nil {
		t.Errorf("Nomad: %v", err)
	}
	if network, err := faasdInit(t.TempDir()); network == nil || !errors.Is(err, cni.ErrLoad) {
		t.Errorf("faasd: %v", err)
	}
	meta := sandboxMetadata{CNIResult: &cni.Result{}}
	if _, err := nomad.address(meta.CNIResult); err == nil {
		t.Error("an address out of nothing")
	}
}
