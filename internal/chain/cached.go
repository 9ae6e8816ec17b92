package chain

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/embedcni/cni/internal/plainfile"
)

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

// Load returns the attachment with the parameters of its ADD, without the
// namespace, or nil if no ADD is cached.
func (c Cached) Load() (*Attachment, error) {
	data := c.read()
	if data == nil {
		return nil, nil
	}
	k, err := c.decode(data)
	if err != nil || k.Config == nil {
		return nil, err
	}
	known := &Attachment{RuntimeConf: c.Attachment.RuntimeConf}
	if k.Args != nil {
		known.Args = k.Args
	}
	text, ok := k.CapabilityArgs[configArgsKey].(string)
	if ok {
		var values map[string]json.RawMessage
		if err := json.Unmarshal([]byte(text), &values); err != nil {
			return nil, fmt.Errorf("cached args.cni: %w", err)
		}
		delete(k.CapabilityArgs, configArgsKey)
		known.ConfigArgs = make(map[string]any, len(values))
		for key, value := range values {
			known.ConfigArgs[key] = value
		}
	}
	known.CapabilityArgs = k.CapabilityArgs
	return known, nil
}

// read returns nil if the file is missing, unreadable, or another attachment's.
func (c Cached) read() []byte {
	data, err := plainfile.Read(c.path())
	if err != nil || c.belongsToOther(data) {
		return nil
	}
	return data
}

// decode decodes a file of libcni's present format.
func (c Cached) decode(data []byte) (k content, err error) {
	if err := json.Unmarshal(data, &k); err != nil {
		return k, fmt.Errorf("failed to unmarshal cached network %q config: %w", c.List.Name, err)
	}
	if k.Kind != libcni.CNICacheV1 {
		return k, fmt.Errorf("read cached network %q config has wrong kind: %v", c.List.Name, k.Kind)
	}
	return k, nil
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
	ifName := c.Attachment.IfName
	added, err := c.Load()
	if err == nil && added == nil {
		return nil, fmt.Errorf("%s of network %q %w", ifName, c.List.Name, ErrNotAdded)
	}
	var result Partial
	if err == nil {
		result, err = c.result()
	}
	if err != nil {
		return nil, fmt.Errorf("%s of network %q %w, as far as can be read: %w", ifName, c.List.Name, ErrNotAdded, err)
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
	data := c.read()
	if data == nil {
		return nil, nil
	}
	if k, err := c.decode(data); err == nil { // else the file is only the result, as in earlier versions of libcni
		if data = k.Result; data == nil {
			data = []byte("null")
		}
	}
	err = guard(func() error {
		r, err := create.CreateFromBytes(data)
		if err != nil {
			return err
		}
		if r, err = r.GetAsVersion(c.List.CNIVersion); err != nil {
			return fmt.Errorf("failed to convert cached result to config version %q: %w", c.List.CNIVersion, err)
		}
		result, err = json.Marshal(r)
		return err
	})
	return result, err
}
