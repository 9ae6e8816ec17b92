package conflist

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/expect"
)

// TestResolve: the delegates stand in flannel's place, by the file of the container's ADD or
// else by the configuration. Anything else is as it was.
func TestResolve(t *testing.T) {
	dir := t.TempDir()
	for id, content := range map[string]string{
		"kept": `{"cniVersion": "0.3.1", "name": "net", "type": "ptp", "ipam": {"type": "static"}}`,
		"torn": `{"na`, "another": `{"name": "another", "type": "ptp"}`,
	} {
		expect.NoError(t, os.WriteFile(filepath.Join(dir, id), []byte(content), 0o600))
	}
	const (
		plain   = `bridge host-local {"cniVersion":"1.0.0","ipam":{"type":"host-local"},"isGateway":true,"name":"net","type":"bridge"}`
		portmap = `portmap  {"type":"portmap"}`
	)
	for _, tt := range []struct {
		plugins, id string
		want        []string
		files       []string
	}{
		{`{"type":"bridge","x":1}, {"type":"portmap"}`, "kept", []string{`bridge  {"type":"bridge","x":1}`, portmap}, nil},
		{`{"type":"flannel","dataDir":"DIR"}, {"type":"portmap"}`, "", []string{plain, portmap}, nil},
		{`{"type":"flannel","dataDir":"DIR"}`, "none", []string{plain}, []string{"DIR/none"}},
		{`{"type":"flannel","dataDir":"DIR"}`, "torn", []string{plain}, []string{"DIR/torn"}},
		{`{"type":"flannel","dataDir":"DIR"}`, "another", []string{plain}, []string{"DIR/another"}},
		{`{"type":"flannel","dataDir":"DIR"}`, "kept",
			[]string{`ptp static {"cniVersion": "0.3.1", "name": "net", "type": "ptp", "ipam": {"type": "static"}}`}, []string{"DIR/kept"}},
		{`{"type":"flannel"}`, "none", []string{plain}, []string{"/var/lib/cni/flannel/none"}},
		{`{"type":"flannel","delegate":{"type":"macvlan","ipMasq":false},"ipam":{"type":"dhcp"}}`, "",
			[]string{`macvlan dhcp {"cniVersion":"1.0.0","ipMasq":false,"ipam":{"type":"dhcp"},"name":"net","type":"macvlan"}`}, nil},
		{`{"type":"flannel","dataDir":5}`, "kept", []string{`flannel  {"type":"flannel","dataDir":5}`}, nil},
		{`{"type":"flannel","delegate":{"name":"x"}}`, "c", []string{`flannel  {"type":"flannel","delegate":{"name":"x"}}`}, []string{"/var/lib/cni/flannel/c"}},
		{`{"type":"flannel","ipam":{"type":5}}`, "", []string{`flannel  {"type":"flannel","ipam":{"type":5}}`}, nil},
	} {
		list := &libcni.NetworkConfigList{Name: "net", CNIVersion: "1.0.0"}
		var before []*libcni.PluginConfig
		for one := range strings.SplitSeq(strings.ReplaceAll(tt.plugins, "DIR", dir), ", ") {
			p := &libcni.PluginConfig{Bytes: []byte(one), Network: typed(one)}
			list.Plugins, before = append(list.Plugins, p), append(before, p)
		}
		resolved, files := Resolve(list, tt.id)
		var got []string
		for _, p := range resolved.Plugins {
			got = append(got, fmt.Sprint(p.Network.Type, " ", p.Network.IPAM.Type, " ", string(p.Bytes)))
		}
		for i := range files {
			files[i] = strings.Replace(files[i], dir, "DIR", 1)
		}
		what := tt.plugins + " of " + tt.id
		expect.Same(t, what, got, tt.want)
		expect.Same(t, "files of "+what, files, tt.files)
		expect.Same(t, "the list itself", list.Plugins, before)
		expect.Same(t, "name and version", resolved.Name+resolved.CNIVersion, "net1.0.0")
	}
}

// typed returns what the list knows of a plugin, of which only the type counts.
func typed(config string) *types.PluginConf {
	_, typ, _ := strings.Cut(config, `"type":"`)
	typ, _, _ = strings.Cut(typ, `"`)
	return &types.PluginConf{Type: typ}
}
