package conflist

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/embedcni/cni/internal/kernel/plainfile"
)

// FlannelDir is the directory in which flannel keeps its files by default.
const FlannelDir = "/var/lib/cni/flannel"

// FlannelConf is the configuration of the plugin flannel. It makes a configuration for
// another plugin, its delegate, from this one and from the lease that flanneld writes into
// SubnetFile. A file of DataDir that is named after the container keeps that configuration
// for the DEL.
type FlannelConf struct {
	Name          string                     `json:"name"`
	CNIVersion    string                     `json:"cniVersion"`
	IPAM          map[string]json.RawMessage `json:"ipam"`
	SubnetFile    string                     `json:"subnetFile"`
	DataDir       string                     `json:"dataDir"`
	Delegate      map[string]json.RawMessage `json:"delegate"`
	RuntimeConfig map[string]json.RawMessage `json:"runtimeConfig"`
}

// ParseFlannel reads the configuration. Its error is encoding/json's.
func ParseFlannel(config []byte) (*FlannelConf, error) {
	f := &FlannelConf{SubnetFile: "/run/flannel/subnet.env", DataDir: FlannelDir}
	return f, json.Unmarshal(config, f)
}

// Delegated returns the configuration of the delegate, and its part for the IPAM plugin, as
// far as the lease does not decide them.
func (f *FlannelConf) Delegated() (config, ipam map[string]any, err error) {
	typ := Bridge
	if raw, ok := f.Delegate["type"]; ok && (raw[0] != '"' || json.Unmarshal(raw, &typ) != nil) {
		return nil, nil, errors.New(`"delegate": its "type" must be a string`)
	}
	for _, key := range []string{"name", "ipam"} {
		if _, ok := f.Delegate[key]; ok {
			return nil, nil, fmt.Errorf(`"delegate" must not have %q: flannel sets it`, key)
		}
	}
	config, ipam = map[string]any{"type": typ}, map[string]any{"type": HostLocal}
	if typ == Bridge {
		config["isGateway"] = true
	}
	for key, value := range f.Delegate {
		config[key] = value
	}
	for key, value := range f.IPAM {
		ipam[key] = value
	}
	config["name"], config["ipam"] = f.Name, ipam
	if f.CNIVersion != "" {
		config["cniVersion"] = f.CNIVersion
	}
	if f.RuntimeConfig != nil {
		config["runtimeConfig"] = f.RuntimeConfig
	}
	return config, ipam, nil
}

// File returns the path of the file for a container.
func (f *FlannelConf) File(containerID string) string { return filepath.Join(f.DataDir, containerID) }

// ErrTorn: a file of flannel has no configuration, perhaps because of a power cut.
var ErrTorn = errors.New("it has no configuration of a plugin")

// ReadKept reads a file in which flannel keeps the configuration of a delegate. It returns
// nil if there is none.
func ReadKept(path string) (*libcni.PluginConfig, error) {
	data, err := plainfile.Read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	kept, err := libcni.NetworkPluginConfFromBytes(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", path, ErrTorn, err)
	}
	return kept, nil
}

// Kept returns the configuration of the delegate that the container's ADD has kept, nil if
// there is none. A file with the name of another network is of another attachment.
func (f *FlannelConf) Kept(containerID string) (*libcni.PluginConfig, error) {
	kept, err := ReadKept(f.File(containerID))
	if kept == nil || kept.Network.Name != f.Name {
		return nil, err
	}
	return kept, nil
}

// Resolve returns the list with the delegates of flannel in its place, and the files that
// flannel keeps for the container. A list without flannel is returned as it is. If there is
// no such file, or no container, the delegate's configuration lacks what the lease decides.
func Resolve(list *libcni.NetworkConfigList, containerID string) (resolved *libcni.NetworkConfigList, files []string) {
	resolved = list
	for i, p := range list.Plugins {
		if p.Network.Type != Flannel {
			continue
		}
		f, err := ParseFlannel(p.Bytes)
		if err != nil {
			continue // its ADD fails
		}
		f.Name, f.CNIVersion = list.Name, list.CNIVersion
		if containerID != "" {
			files = append(files, f.File(containerID))
		}
		d := f.delegate(containerID)
		if d == nil {
			continue
		}
		if resolved == list {
			copied := *list
			copied.Plugins = slices.Clone(list.Plugins)
			resolved = &copied
		}
		resolved.Plugins[i] = d
	}
	return resolved, files
}

// delegate returns the delegate for Resolve; nil if there is none.
func (f *FlannelConf) delegate(containerID string) *libcni.PluginConfig {
	if containerID != "" {
		if kept, err := f.Kept(containerID); kept != nil && err == nil {
			return kept
		}
	}
	config, _, err := f.Delegated()
	if err != nil {
		return nil
	}
	p, err := Configured(config)
	if err != nil {
		return nil
	}
	return p
}

// Configured returns a plugin with this configuration.
func Configured(config map[string]any) (*libcni.PluginConfig, error) {
	data, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	p := &libcni.PluginConfig{Network: &types.PluginConf{}, Bytes: data}
	return p, json.Unmarshal(data, p.Network)
}
