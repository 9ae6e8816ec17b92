package chain

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/plainfile"
)

// configArgsKey is the capability under which ConfigArgs are cached, because
// libcni has no field for them. They are cached as text, because libcni would
// round large numbers. No plugin declares the capability, so none gets it.
const configArgsKey = "cni.dev/config-args"

// Cached is an attachment in libcni's cache: one file.
type Cached struct {
	Dir        string // of the cache
	List       *libcni.NetworkConfigList
	Attachment *Attachment
}

// CachedAs names an attachment in a cache whose configuration is not known: that suffices to
// find it.
func CachedAs(dir, network, containerID, ifName string) Cached {
	return Cached{dir, &libcni.NetworkConfigList{Name: network}, &Attachment{RuntimeConf: libcni.RuntimeConf{ContainerID: containerID, IfName: ifName}}}
}

func (c *Chain) cached(a *Attachment) Cached { return Cached{c.CacheDir, c.List, a} }

// content is the content of a file of libcni's cache.
type content struct {
	Kind           string          `json:"kind"`
	ContainerID    string          `json:"containerId"`
	Config         []byte          `json:"config"`
	IfName         string          `json:"ifName"`
	NetworkName    string          `json:"networkName"`
	NetNS          string          `json:"netns,omitempty"`
	Args           [][2]string     `json:"cniArgs,omitempty"`
	CapabilityArgs map[string]any  `json:"capabilityArgs,omitempty"`
	Result         json.RawMessage `json:"result,omitempty"`
}

// prepare begins to make the file, while the plugins run.
func (c Cached) prepare() *plainfile.Unnamed { return plainfile.Prepare(filepath.Dir(c.path()), 0o600) }

// write caches the result of an ADD, in the prepared file if that is possible.
func (c Cached) write(result json.RawMessage, prepared *plainfile.Unnamed) error {
	a := c.Attachment
	capabilities, err := a.cacheable()
	if err != nil {
		return err
	}
	data, err := json.Marshal(content{
		Kind: libcni.CNICacheV1, ContainerID: a.ContainerID, Config: c.List.Bytes, IfName: a.IfName,
		NetworkName: c.List.Name, NetNS: a.NetNS, Args: a.Args, CapabilityArgs: capabilities, Result: result,
	})
	if err != nil {
		return err
	}
	path := c.path()
	if f, err := prepared.Publish(path, data); err == nil {
		return f.Close()
	}
	err = plainfile.Write(path, data, 0o600)
	if errors.Is(err, fs.ErrNotExist) { // the first ADD
		if err = os.MkdirAll(filepath.Dir(path), 0o700); err == nil {
			err = plainfile.Write(path, data, 0o600)
		}
	}
	return err
}

// cacheable returns the capabilities to cache for an ADD.
func (a *Attachment) cacheable() (map[string]any, error) {
	if len(a.ConfigArgs) == 0 {
		return a.CapabilityArgs, nil
	}
	text, err := json.Marshal(a.ConfigArgs)
	if err != nil {
		return nil, fmt.Errorf("args.cni: %w", err)
	}
	capabilities := maps.Clone(a.CapabilityArgs)
	if capabilities == nil {
		capabilities = map[string]any{}
	}
	capabilities[configArgsKey] = string(text)
	return capabilities, nil
}

func (c Cached) path() string {
	return filepath.Join(c.Dir, "results", fmt.Sprintf("%s-%s-%s", c.List.Name, c.Attachment.ContainerID, c.Attachment.IfName))
}

// belongsToOther reports whether the file is another attachment's. Its name
// joins three parts, so network "a" with container "b-c" and network "a-b" with
// container "c" share one file.
func (c Cached) belongsToOther(data []byte) bool {
	var owner struct {
		ContainerID string `json:"containerId"`
		NetworkName string `json:"networkName"`
	}
	if json.Unmarshal(data, &owner) != nil || owner.ContainerID == "" || owner.NetworkName == "" {
		return false
	}
	return owner.ContainerID != c.Attachment.ContainerID || owner.NetworkName != c.List.Name
}

// Forget deletes the file of an attachment that is gone although its Del
// failed. Otherwise other runtimes, and a GC, would consider it attached.
func (c Cached) Forget() error {
	if data, err := plainfile.Read(c.path()); err == nil && c.belongsToOther(data) {
		return nil
	}
	if err := os.Remove(c.path()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget the cached attachment: %w", err)
	}
	return nil
}
