package chain

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/embedcni/cni/internal/plainfile"
)

// ErrNotCached means that libcni's cache lacks an ADD, or differs from it.
var ErrNotCached = errors.New("not in libcni's cache")

// CachedFor returns nil if a DEL by libcni alone would give the plugins the
// result of the ADD of a. Otherwise the error wraps ErrNotCached and names the
// file. libcni ignores a file that it cannot use, and its plugins then leave
// behind everything that they find by the result.
func (c *Chain) CachedFor(a *Attachment, result json.RawMessage) error {
	if err := c.cachedFor(a, result); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrNotCached, filepath.Base(c.cacheFile(a)), err)
	}
	return nil
}

func (c *Chain) cachedFor(a *Attachment, result json.RawMessage) error {
	data, err := plainfile.Read(c.cacheFile(a))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no such file in %s", filepath.Join(c.CacheDir, "results"))
	}
	if err != nil {
		return err
	}
	if c.isOfAnother(data, a) {
		return errors.New("the file is another attachment's")
	}
	config, _, err := c.plain().GetNetworkListCachedConfig(c.List, &libcni.RuntimeConf{ContainerID: a.ContainerID, IfName: a.IfName})
	if err != nil {
		return err
	}
	if len(config) == 0 {
		return errors.New("it has no configuration")
	}
	cached, err := c.cachedResult(a)
	if err != nil {
		return err
	}
	same, err := sameResult(cached, result)
	if err == nil && !same {
		err = errors.New("it has another result than the record")
	}
	return err
}

// sameResult reports whether two results, of any versions, are the same.
func sameResult(a, b json.RawMessage) (same bool, err error) {
	var texts [2][]byte
	for i, data := range []json.RawMessage{a, b} {
		err := guard(func() error {
			r, err := create.CreateFromBytes(data)
			if err != nil {
				return err
			}
			current, err := types100.NewResultFromResult(r)
			if err != nil {
				return err
			}
			texts[i], err = json.Marshal(current)
			return err
		})
		if err != nil {
			return false, fmt.Errorf("result: %w", err)
		}
	}
	return bytes.Equal(texts[0], texts[1]), nil
}
