package cachedports

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/embedcni/cni/internal/plainfile"
	"github.com/embedcni/cni/internal/portindex"
	"github.com/embedcni/cni/internal/record"
)

// file is a file of the cache, as it was when it was read.
type file struct {
	changed time.Time
	size    int64
	// record is the name of the record that has the container's ports. While it exists
	// there is nothing else of the file here, and it is not looked at again.
	record string
	Attachment
}

// refresh reads the files that are new or have changed, and forgets those that are gone.
func (c *Cache) refresh() error {
	names, err := namesIn(c.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// After the cache, because a container is on record before it is in the cache.
	recorded, err := c.records.Files()
	if err != nil {
		return err
	}
	onRecord := func(name string) bool { _, has := slices.BinarySearch(recorded, name); return has }
	files := make(map[string]*file, len(names))
	for _, name := range names {
		f := c.files[name]
		if f == nil || !onRecord(f.record) {
			f = c.look(name, f, onRecord)
		}
		if f != nil {
			files[name] = f
		}
	}
	c.files = files
	return nil
}

func namesIn(dir string) (names []string, err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	return d.Readdirnames(-1)
}

// look returns a file as it is now, nil if it is gone. The attachment is the zero one if
// the file cannot be read, or is of no attachment that asks for ports: nobody may be
// refused a port because of it.
func (c *Cache) look(name string, before *file, onRecord func(name string) bool) *file {
	path := filepath.Join(c.dir, name)
	info, err := os.Lstat(path)
	if err != nil {
		return nil
	}
	now := &file{changed: info.ModTime(), size: info.Size()}
	same := before != nil && before.record == "" && before.size == now.size && before.changed.Equal(now.changed)
	if same && (len(before.Claims) == 0 || !onRecord(record.Name(record.ID(before.ContainerID)))) {
		return before
	}
	data, err := plainfile.Read(path)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			c.logger.Debug("the ports of the host that a container in libcni's cache has are not known", "file", path, "error", err)
		}
		return now
	}
	if !bytes.Contains(data, []byte(portindex.Capability)) {
		return now
	}
	if recorded := record.Name(record.ID(containerOf(data))); onRecord(recorded) {
		now.record = recorded
		return now
	}
	now.Attachment = c.parse(data)
	return now
}

// containerOf returns the container's ID, which libcni writes before all that is long.
func containerOf(data []byte) (id string) {
	d := json.NewDecoder(bytes.NewReader(data))
	for {
		token, err := d.Token()
		if err != nil {
			return ""
		}
		if token == "containerId" {
			_ = d.Decode(&id) // an ID that is no string is nobody's
			return id
		}
	}
}

// parse reads the content of a file.
func (c *Cache) parse(data []byte) (a Attachment) {
	var content struct {
		ContainerID    string                     `json:"containerId"`
		NetworkName    string                     `json:"networkName"`
		IfName         string                     `json:"ifName"`
		NetNS          string                     `json:"netns"`
		Config         []byte                     `json:"config"`
		CapabilityArgs map[string]json.RawMessage `json:"capabilityArgs"`
	}
	if json.Unmarshal(data, &content) != nil || content.ContainerID == "" {
		return a
	}
	return Attachment{
		ContainerID: content.ContainerID, Network: content.NetworkName, IfName: content.IfName, NetNS: content.NetNS,
		Claims: portindex.Claims(&record.Attachment{Config: content.Config, Capabilities: content.CapabilityArgs}, &c.configs),
	}
}
