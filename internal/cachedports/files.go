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
	// there is no attachment here, and the file is not read again.
	record string
	Attachment
}

// compareEvery is the interval after which the files of our own containers are compared
// with the records again. Only a Release leaves a container in the cache and off record.
const compareEvery = time.Second

// refresh reads the files that are new or have changed, and forgets those that are gone.
func (c *Cache) refresh(now time.Time) error {
	if !c.follow() {
		names, err := c.list()
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		c.lists++
		before := c.files
		c.files = make(map[string]*file, len(names))
		for _, name := range names {
			if f := before[name]; f != nil && (f.record != "" || c.isUnchanged(name, f)) {
				c.files[name] = f
			} else {
				c.look(name)
			}
		}
	}
	if now.Sub(c.compared) < compareEvery {
		return nil
	}
	recorded, err := c.records.Files()
	if err != nil {
		return err
	}
	for name, f := range c.files {
		if _, has := slices.BinarySearch(recorded, f.record); f.record != "" && !has {
			c.look(name)
		}
	}
	c.compared = now
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

func (c *Cache) isUnchanged(name string, f *file) bool {
	info, err := os.Lstat(filepath.Join(c.dir, name))
	return err == nil && info.Size() == f.size && info.ModTime().Equal(f.changed)
}

// look reads a file and enters it, or forgets it if it is gone.
func (c *Cache) look(name string) {
	if f := c.read(name); f != nil {
		c.files[name] = f
	} else {
		delete(c.files, name)
	}
}

// read returns nil if the file is gone. The attachment is the zero one if the file cannot
// be read, or is of no attachment that asks for ports: nobody may be refused a port
// because of it.
func (c *Cache) read(name string) *file {
	path := filepath.Join(c.dir, name)
	info, err := os.Lstat(path)
	if err != nil {
		return nil
	}
	now := &file{changed: info.ModTime(), size: info.Size()}
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
	recorded := record.Name(record.ID(containerOf(data)))
	if has, err := c.records.Exists(recorded); has || err != nil {
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
