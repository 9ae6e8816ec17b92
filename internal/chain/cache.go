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

// configArgsKey is where ConfigArgs are cached, for which libcni has no place:
// among the capabilities, as text, because numbers in there lose digits. A
// plugin does not declare it and does not get it.
const configArgsKey = "cni.dev/config-args"

// cached is what libcni keeps of an ADD.
type cached struct {
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

// cache keeps the result of an ADD where libcni would.
func (c *Chain) cache(a *Attachment, result json.RawMessage) error {
	capabilities, err := a.cacheable()
	if err != nil {
		return err
	}
	data, err := json.Marshal(cached{
		Kind: libcni.CNICacheV1, ContainerID: a.ContainerID, Config: c.List.Bytes, IfName: a.IfName,
		NetworkName: c.List.Name, NetNS: a.NetNS, Args: a.Args, CapabilityArgs: capabilities, Result: result,
	})
	if err != nil {
		return err
	}
	path := c.cacheFile(a)
	err = plainfile.Write(path, data, 0o600)
	if errors.Is(err, fs.ErrNotExist) { // the first one
		if err = os.MkdirAll(filepath.Dir(path), 0o700); err == nil {
			err = plainfile.Write(path, data, 0o600)
		}
	}
	return err
}

// cacheable are the capabilities that an ADD is cached with.
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

// fromCache is the opposite of cacheable.
func fromCache(rt *libcni.RuntimeConf) (*Attachment, error) {
	a := &Attachment{RuntimeConf: *rt}
	text, ok := rt.CapabilityArgs[configArgsKey].(string)
	if !ok {
		return a, nil
	}
	var values map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &values); err != nil {
		return nil, fmt.Errorf("cached args.cni: %w", err)
	}
	delete(a.CapabilityArgs, configArgsKey)
	a.ConfigArgs = make(map[string]any, len(values))
	for key, value := range values {
		a.ConfigArgs[key] = value
	}
	return a, nil
}

// cacheFile is where libcni keeps the result of an ADD.
func (c *Chain) cacheFile(a *Attachment) string {
	return filepath.Join(c.CacheDir, "results", fmt.Sprintf("%s-%s-%s", c.List.Name, a.ContainerID, a.IfName))
}

// isAnothers tells whether the file that libcni would take for the attachment's
// is another one's: it joins the names, so that network "a" with container
// "b-c" and network "a-b" with container "c" have one file.
func (c *Chain) isAnothers(a *Attachment) bool {
	data, err := plainfile.Read(c.cacheFile(a))
	if err != nil {
		return false // nobody's, or libcni will say why it cannot be read
	}
	return c.isOfAnother(data, a)
}

func (c *Chain) isOfAnother(data []byte, a *Attachment) bool {
	var owner struct {
		ContainerID string `json:"containerId"`
		NetworkName string `json:"networkName"`
	}
	if json.Unmarshal(data, &owner) != nil || owner.ContainerID == "" || owner.NetworkName == "" {
		return false
	}
	return owner.ContainerID != a.ContainerID || owner.NetworkName != c.List.Name
}

// libcni is libcni with its cache, unless the attachment's place there is
// another one's.
func (c *Chain) libcni(x *exec, a *Attachment) *libcni.CNIConfig {
	if c.isAnothers(a) {
		return c.uncached(x)
	}
	return x.libcni(c)
}

// AllCached are the attachments in libcni's cache, those of the container if id
// is not empty. libcni would wait for the other end of a FIFO.
func AllCached(cacheDir, id string) ([]*libcni.NetworkAttachment, error) {
	dir := filepath.Join(cacheDir, "results")
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cached attachments: %w", err)
	}
	for _, e := range entries {
		if e.Type()&(fs.ModeNamedPipe|fs.ModeSocket|fs.ModeDevice) == 0 {
			continue // a link into such a thing is nobody's mistake
		}
		return nil, fmt.Errorf("cached attachments: %w", &fs.PathError{Op: "read", Path: filepath.Join(dir, e.Name()), Err: plainfile.ErrNotRegular})
	}
	cached, err := libcni.NewCNIConfigWithCacheDir(nil, cacheDir, nil).GetCachedAttachments(id)
	if err != nil {
		return nil, fmt.Errorf("cached attachments: %w", err)
	}
	return cached, nil
}

// CachedResult is the result that the ADD of a was cached with, or nil if there
// is none that can be used.
func (c *Chain) CachedResult(a *Attachment) Partial {
	result, err := c.cachedResult(a)
	if err != nil {
		return nil
	}
	return Partial(result)
}

// Forget deletes what libcni has cached of an attachment that is gone although
// its Del failed: other runtimes, and a GC, would take it for attached.
func (c *Chain) Forget(a *Attachment) error {
	if c.isAnothers(a) {
		return nil
	}
	if err := os.Remove(c.cacheFile(a)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget the cached attachment: %w", err)
	}
	return nil
}
