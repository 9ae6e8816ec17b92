package conflists

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// source is a configuration file in testdata.
type source struct {
	file string
	from string // the project, its commit, and the file that writes it there; empty: of no project
	// fixed: it runs as it is written only.
	fixed bool
}

// config returns the configuration as it is written.
func (s source) config(t *testing.T) []byte {
	t.Helper()
	return expect.Value(os.ReadFile(filepath.Join("testdata", s.file)))(t)
}

// sources are the configurations as their projects write them: the keys, their order and the
// shape of the file are theirs, the values are ours.
var sources = []source{
	{file: "antrea.conflist", from: "antrea-io/antrea 80285fc2cdfc build/charts/antrea/conf/antrea-cni.conflist"},
	{file: "aws-vpc.conflist", from: "aws/amazon-vpc-cni-k8s 7f137be3ed2a misc/10-aws.conflist, and the capability that 1.21 adds"},
	{file: "azure.conflist", from: "Azure/azure-container-networking 4e429597dee6 cni/azure-linux.conflist"},
	{file: "azure-multitenancy.conflist", from: "Azure/azure-container-networking 42300f792ab7 cni/azure-linux-multitenancy-transparent-vlan.conflist"},
	{file: "azure-overlay.conflist", from: "Azure/azure-container-networking f43501544376 cni/azure-linux-swift-overlay-dualstack.conflist"},
	{file: "calico.conflist", from: "projectcalico/calico 28fd1a104340 charts/calico/templates/calico-config.yaml, with bandwidth as in 48be29fe67d8"},
	{file: "calico-operator.conflist", from: "tigera/operator 339cf732adda pkg/render/node_test.go"},
	{file: "canal.conflist", from: "projectcalico/calico 48be29fe67d8 manifests/canal.yaml"},
	{file: "canal-etcd.conflist", from: "projectcalico/calico 28fd1a104340 charts/calico/templates/calico-config.yaml, flannel with etcd"},
	{file: "cilium.conflist", from: "cilium/cilium 0f75ecd91fcb daemon/cmd/cni/config.go, mode none"},
	{file: "cilium-aws.conflist", from: "cilium/cilium 0f75ecd91fcb daemon/cmd/cni/config.go, chained to aws-cni"},
	{file: "cilium-flannel.conflist", from: "cilium/cilium 0f75ecd91fcb daemon/cmd/cni/config.go, mode flannel"},
	{file: "cilium-portmap.conflist", from: "cilium/cilium 0f75ecd91fcb daemon/cmd/cni/config.go, mode portmap"},
	{file: "consul.conflist", from: "hashicorp/consul-k8s 080d787c98fb control-plane/cni/config/config.go, chained to kindnet's"},
	{file: "containerd.conflist", from: "containerd/containerd 77a5804f6af2 script/setup/install-cni"},
	{file: "crio.conflist", from: "cri-o/cri-o cade249cb0ac contrib/cni/10-crio-bridge.conflist"},
	{file: "firecracker.conflist", from: "firecracker-microvm/firecracker-go-sdk, its README's network, with tc-redirect-tap"},
	{file: "flannel.conflist", from: "flannel-io/flannel 0106d234553b Documentation/kube-flannel.yml"},
	{file: "flannel-annotations.conflist", from: "flannel-io/flannel 0106d234553b Documentation/kube-flannel.yml, with containerd's capability for annotations"},
	{file: "gke.conflist", from: "GoogleCloudPlatform/netd 00481ceade92 netd.yaml, with bandwidth of 397a0339f01a pkg/install-cni/plugin/bandwidth.go"},
	{file: "gke-calico.conflist", from: "GoogleCloudPlatform/netd 00481ceade92 netd.yaml, calico_cni_spec_template"},
	{file: "gke-dataplane-v2.conflist", from: "GoogleCloudPlatform/netd 397a0339f01a pkg/install-cni/plugin: ptp.go, bandwidth.go, cilium.go"},
	{file: "istio.conflist", from: "istio/istio 5787b85b7ca2 cni/pkg/install/cniconfig.go, chained to Calico's"},
	{file: "kindnet.conflist", from: "kubernetes-sigs/kindnet 001bf202c034 pkg/node/cni.go"},
	{file: "kindnet-ptp.conflist", from: "kubernetes-sigs/kind eab6fdb2025e images/kindnetd/cmd/kindnetd/cni.go"},
	{file: "kube-ovn.conflist", from: "kubeovn/kube-ovn bb63f8ca3fa8 dist/images/00-kube-ovn.conflist"},
	{file: "kube-router.conf", from: "cloudnativelabs/kube-router 160ecb28abc3 daemonset/generic-kuberouter.yaml"},
	{file: "kube-router-hostport.conflist", from: "cloudnativelabs/kube-router 9982ba3188be daemonset/kubeadm-kuberouter-all-features-hostport.yaml"},
	{file: "linkerd.conflist", from: "linkerd/linkerd2 70cf784db0e0 charts/linkerd2-cni/templates/cni-plugin.yaml, chained to flannel's"},
	{file: "multus.conf", from: "k8snetworkplumbingwg/multus-cni 03dead1afd15 deployments/multus-daemonset.yml"},
	{file: "multus-auto.conf", from: "k8snetworkplumbingwg/multus-cni 0864e88c93b1 pkg/server/config/generator.go, of Calico's"},
	{file: "multus-thick.conf", from: "k8snetworkplumbingwg/multus-cni 05517e26bc4b deployments/multus-daemonset-thick.yml, as its daemon writes it"},
	{file: "nerdctl.conflist", from: "containerd/nerdctl 0810833c07f1 pkg/netutil/cni_plugin_unix.go, with its ID and labels"},
	{file: "nomad.conflist", from: "Nomad's bridge network with consul-cni; the shape alone"},
	{file: "ovn-kubernetes.conf", from: "ovn-kubernetes/ovn-kubernetes 73cbacbb8a6d go-controller/pkg/config/cni.go, encoded as 036a5d8fdf2e pkg/cni/types/types.go"},
	{file: "ovn-kubernetes-secondary.conf", from: "ovn-kubernetes/ovn-kubernetes 036a5d8fdf2e go-controller/pkg/cni/types/types.go, with IPAM by whereabouts"},
	{file: "podman.conflist", from: "containers/common 6310b06e24b5 libnetwork/cni/testfiles/valid/bridge.conflist, with addresses, MAC and dnsname"},
	{file: "spiderpool.conflist", from: "spidernet-io/spiderpool 7221fe361889 docs/usage/ifacer.md"},
	{file: "sriov.conf", from: "k8snetworkplumbingwg/sriov-cni, its documented keys"},
	{file: "terway.conflist", from: "AliyunContainerService/terway 3ccdfe139296 docs/cni-chain.md"},
	{file: "weave.conflist", from: "weaveworks/weave 025cab346fc8, weave setup-cni, called by prog/weave-kube/launch.sh"},
	{file: "whereabouts.conf", from: "k8snetworkplumbingwg/whereabouts, its documented keys"},

	// Not of a project: what none of theirs has.
	{file: "capabilities.conflist"},
	{file: "deep.conflist", fixed: true},
	{file: "disabled.conflist", fixed: true},
	{file: "folder.conflist", fixed: true},
	{file: "inlined.conflist", fixed: true},
	{file: "numbers.conflist"},
	{file: "offered.conflist", fixed: true},
	{file: "only-inlined.conflist", fixed: true},
}

// TestEachFileHasASource: the files and the table agree.
func TestEachFileHasASource(t *testing.T) {
	var files, listed []string
	for _, pattern := range []string{"*.conf", "*.conflist"} {
		for _, path := range expect.Value(filepath.Glob(filepath.Join("testdata", pattern)))(t) {
			files = append(files, filepath.Base(path))
		}
	}
	for _, s := range sources {
		listed = append(listed, s.file)
	}
	slices.Sort(files)
	slices.Sort(listed)
	expect.Same(t, "listed files", listed, files)
}

// versionOf returns the version that a configuration states.
func versionOf(t *testing.T, config []byte) string {
	t.Helper()
	var stated struct{ CNIVersion string }
	expect.NoError(t, json.Unmarshal(config, &stated))
	return stated.CNIVersion
}

var statedVersion = regexp.MustCompile(`"cniVersion"\s*:\s*"[^"]*"`)

// withVersion returns a configuration of another version, to the byte the same otherwise.
func withVersion(t *testing.T, config []byte, version string) []byte {
	t.Helper()
	if versionOf(t, config) == version {
		return config
	}
	stated := []byte(`"cniVersion": "` + version + `"`)
	at := statedVersion.FindIndex(config)
	if versionOf(t, config) == "" { // else the first one is the network's
		at = []int{slices.Index(config, '{') + 1}
		at, stated = append(at, at[0]), append(stated, ',')
	}
	changed := slices.Concat(config[:at[0]], stated, config[at[1]:])
	expect.Same(t, "version", versionOf(t, changed), version)
	return changed
}

// pluginsOf returns the objects of the plugins of a configuration, as they are written: of a
// list, with those in the directory of its name.
func pluginsOf(t *testing.T, path string, config []byte) []json.RawMessage {
	t.Helper()
	if !isList(path) {
		return []json.RawMessage{config}
	}
	var list struct {
		Name                   string
		LoadOnlyInlinedPlugins bool
		Plugins                []json.RawMessage
	}
	expect.NoError(t, json.Unmarshal(config, &list))
	files := expect.Value(filepath.Glob(filepath.Join(filepath.Dir(path), list.Name, "*.conf")))(t)
	if list.LoadOnlyInlinedPlugins {
		files = nil
	}
	for _, file := range files {
		list.Plugins = append(list.Plugins, expect.Value(os.ReadFile(file))(t))
	}
	return list.Plugins
}

// typesIn returns each type that configurations name, wherever: those of plugins, and
// others, which harm nobody.
func typesIn(t *testing.T, configs []json.RawMessage) []string {
	t.Helper()
	types := map[string]bool{"bridge": true, "host-local": true} // flannel delegates to them
	var walk func(value any)
	walk = func(value any) {
		switch v := value.(type) {
		case map[string]any:
			if typ, ok := v["type"].(string); ok && typ != "" {
				types[typ] = true
			}
			for _, inner := range v {
				walk(inner)
			}
		case []any:
			for _, inner := range v {
				walk(inner)
			}
		}
	}
	for _, config := range configs {
		walk(decoded(t, config))
	}
	return slices.Sorted(maps.Keys(types))
}
