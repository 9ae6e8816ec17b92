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
)

// configArgsKey is where ConfigArgs are cached, for which libcni has no place:
// among the capabilities, as text, because numbers in there lose digits. A
// plugin does not declare it and does not get it.
const configArgsKey = "cni.dev/config-args"

// cacheable is what libcni is given for an ADD, and caches.
func (a *Attachment) cacheable() (*libcni.RuntimeConf, error) {
	rt := a.RuntimeConf
	if len(a.ConfigArgs) == 0 {
		return &rt, nil
	}
	text, err := json.Marshal(a.ConfigArgs)
	if err != nil {
		return nil, fmt.Errorf("args.cni: %w", err)
	}
	rt.CapabilityArgs = maps.Clone(rt.CapabilityArgs)
	if rt.CapabilityArgs == nil {
		rt.CapabilityArgs = map[string]any{}
	}
	rt.CapabilityArgs[configArgsKey] = string(text)
	return &rt, nil
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

// CachedResult is the result that the ADD of a was cached with, or nil if there
// is none that can be used.
func (c *Chain) CachedResult(a *Attachment) Partial {
	result, err := c.cachedResult(a)
	if err != nil {
		return nil
	}
	return Partial(result)
}

// Forget deletes what libcni has cached of a, as its DEL does when every plugin
// has succeeded.
func (c *Chain) Forget(a *Attachment) error {
	if err := os.Remove(c.cacheFile(a)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget the cached attachment: %w", err)
	}
	return nil
}
