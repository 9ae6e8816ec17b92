package chain

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/libcni"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/plainfile"
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

// AllCached returns the attachments in libcni's cache: those of the container,
// or all if id is empty. A FIFO among the files is an error, because libcni
// would wait for its other end.
func AllCached(cacheDir, id string) ([]*libcni.NetworkAttachment, error) {
	dir := filepath.Join(cacheDir, "results")
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cached attachments: %w", err)
	}
	for _, e := range entries {
		if e.Type()&(fs.ModeNamedPipe|fs.ModeSocket|fs.ModeDevice) == 0 {
			continue // symbolic links are not followed: nobody links to a FIFO by mistake
		}
		return nil, fmt.Errorf("cached attachments: %w", &fs.PathError{Op: "read", Path: filepath.Join(dir, e.Name()), Err: plainfile.ErrNotRegular})
	}
	cached, err := libcni.NewCNIConfigWithCacheDir(nil, cacheDir, nil).GetCachedAttachments(id)
	if err != nil {
		return nil, fmt.Errorf("cached attachments: %w", err)
	}
	return cached, nil
}

// libcni returns libcni's reader of the cache.
func (c Cached) libcni() *libcni.CNIConfig { return libcni.NewCNIConfigWithCacheDir(nil, c.Dir, nil) }

// isReadable reports whether the file exists and is this attachment's. libcni would wait
// for a FIFO.
func (c Cached) isReadable() bool {
	data, err := plainfile.Read(c.path())
	return err == nil && !c.belongsToOther(data)
}

// Load returns the attachment with the parameters of its ADD, without the
// namespace, or nil if no ADD is cached.
func (c Cached) Load() (*Attachment, error) {
	if !c.isReadable() {
		return nil, nil
	}
	config, conf, err := c.libcni().GetNetworkListCachedConfig(c.List, &c.Attachment.RuntimeConf)
	if err != nil || config == nil {
		return nil, err
	}
	known := &Attachment{RuntimeConf: *conf}
	text, ok := known.CapabilityArgs[configArgsKey].(string)
	if ok {
		var values map[string]json.RawMessage
		if err := json.Unmarshal([]byte(text), &values); err != nil {
			return nil, fmt.Errorf("cached args.cni: %w", err)
		}
		delete(known.CapabilityArgs, configArgsKey)
		known.ConfigArgs = make(map[string]any, len(values))
		for key, value := range values {
			known.ConfigArgs[key] = value
		}
	}
	return known, nil
}

// Find returns the attachment as libcni lists it, with the configuration and the
// namespace path of the ADD, or nil if no ADD is cached.
func (c Cached) Find() (*libcni.NetworkAttachment, error) {
	all, err := AllCached(c.Dir, c.Attachment.ContainerID)
	if err != nil {
		return nil, err
	}
	for _, one := range all {
		if one.Network == c.List.Name && one.IfName == c.Attachment.IfName {
			return one, nil
		}
	}
	return nil, nil
}

// added returns the result of the ADD, or an ErrNotAdded.
func (c Cached) added() (Partial, error) {
	added, err := c.Load()
	if err == nil && added == nil {
		return nil, fmt.Errorf("it %w", ErrNotAdded)
	}
	var result Partial
	if err == nil {
		result, err = c.result()
	}
	if err != nil {
		return nil, fmt.Errorf("it %w, as far as can be read: %w", ErrNotAdded, err)
	}
	return result, nil
}

// Result returns the result of the ADD, or nil if it is missing or unusable.
func (c Cached) Result() Partial {
	result, err := c.result()
	if err != nil {
		return nil
	}
	return result
}

// result returns the result of the ADD in the configuration's version, or nil if
// there is none.
func (c Cached) result() (result Partial, err error) {
	if !c.isReadable() {
		return nil, nil
	}
	err = guard(func() error {
		r, err := c.libcni().GetNetworkListCachedResult(c.List, &c.Attachment.RuntimeConf)
		if err == nil && r != nil {
			result, err = json.Marshal(r)
		}
		return err
	})
	return result, err
}

// ForgetUnneeded deletes the files of one container from libcni's cache that nobody needs:
// those that libcni cannot read, and those of attachments that unneeded accepts.
// isIt reports whether an ID is the container's. A file that a power cut has emptied is
// known by its name, which contains the ID.
func ForgetUnneeded(cacheDir string, isIt func(id string) bool, unneeded func(*libcni.NetworkAttachment) bool) error {
	dir := filepath.Join(cacheDir, "results")
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cached attachments: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if !e.Type().IsRegular() || !mayName(e.Name(), isIt) {
			continue
		}
		path := filepath.Join(dir, e.Name())
		data, err := plainfile.Read(path)
		var k content
		if err == nil && (json.Unmarshal(data, &k) != nil || isIt(k.ContainerID) && unneeded(&libcni.NetworkAttachment{
			ContainerID: k.ContainerID, Network: k.NetworkName, IfName: k.IfName, Config: k.Config, NetNS: k.NetNS,
		})) {
			err = os.Remove(path)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("forget a cached attachment: %w", err))
		}
	}
	return joined.Errors(errs...)
}

// mayName reports whether a file name of libcni's cache, which is the network, the ID and
// the interface joined by hyphens, may contain the ID.
func mayName(file string, isIt func(id string) bool) bool {
	parts := strings.Split(file, "-")
	for from := 1; from < len(parts)-1; from++ {
		for to := from + 1; to < len(parts); to++ {
			if isIt(strings.Join(parts[from:to], "-")) {
				return true
			}
		}
	}
	return false
}
