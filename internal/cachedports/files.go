package cachedports

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/embedcni/cni/internal/plainfile"
	"github.com/embedcni/cni/internal/portindex"
	"github.com/embedcni/cni/internal/ports"
	"github.com/embedcni/cni/internal/record"
)

// file is a file of the cache, as it was when it was read. There may be ten thousand, so
// it has no more than a search needs.
type file struct {
	id      string // of the container, if it has ports
	changed int64  // in nanoseconds since 1970
	size    int64
	ours    bool // the container is on the runtime's own record, which has its ports
	seen    int  // the last list with the name, if there was one since the file was read
}

// listEvery is the interval after which the names are listed again, without a watch.
const listEvery = time.Second

// refresh reads the files that are new, or that another program may have written anew.
// Without a watch it lists the names if the directory has changed.
func (c *Cache) refresh(now time.Time) error {
	if c.follow() {
		return nil
	}
	if !c.looked.IsZero() && now.Sub(c.looked) < listEvery {
		return nil
	}
	info, err := os.Stat(c.dir)
	if errors.Is(err, fs.ErrNotExist) {
		c.files, c.byPort, c.looked, c.changed = nil, ports.ByPort{}, now, time.Time{}
		return nil
	}
	if err != nil {
		return err
	}
	// A change within the same tick of the clock as the one before shows no other time.
	if settled := now.Sub(info.ModTime()) > listEvery; settled && info.ModTime().Equal(c.changed) {
		return nil
	}
	names, err := c.list()
	if err != nil {
		return err
	}
	first := c.files == nil
	if first {
		c.files = make(map[string]*file, len(names))
		c.load(len(names))
	}
	if read := c.look(names); first {
		c.keep(read)
	}
	c.changed, c.looked = info.ModTime(), now
	return nil
}

// look reads the files that are new or written anew, and forgets those that are gone. It
// returns how many it has read.
func (c *Cache) look(names []string) (read int) {
	c.lists++
	for _, name := range names {
		f := c.files[name]
		if f == nil || !f.ours && !c.unchanged(name, f) {
			a, now := c.read(name)
			if c.enter(name, now, ports.Code(a.Claims)); now == nil {
				continue
			}
			read++
			f = now
		}
		f.seen = c.lists
	}
	if len(c.files) > len(names) {
		for name, f := range c.files {
			if f.seen != c.lists {
				c.enter(name, nil, "")
			}
		}
	}
	return read
}

// enter replaces what is known of a file; nil: it is gone.
func (c *Cache) enter(name string, now *file, code string) {
	c.byPort.Set(name, code)
	if now == nil {
		delete(c.files, name)
		return
	}
	c.files[name] = now
}

func namesIn(dir string) (names []string, err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	return d.Readdirnames(-1)
}

func (c *Cache) unchanged(name string, f *file) bool {
	info, err := os.Lstat(filepath.Join(c.dir, name))
	return err == nil && info.ModTime().UnixNano() == f.changed && info.Size() == f.size
}

// read reads a file. The attachment is the zero one if the file cannot be read, or is of
// no attachment that asks for ports: nobody may be refused a port because of it. If the
// file is gone, it returns nil.
func (c *Cache) read(name string) (Attachment, *file) {
	path := filepath.Join(c.dir, name)
	info, err := os.Lstat(path)
	if err != nil {
		return Attachment{}, nil
	}
	f := &file{changed: info.ModTime().UnixNano(), size: info.Size()}
	data, err := plainfile.Read(path)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			c.logger.Debug("the ports of the host that a container in libcni's cache has are not known", "file", path, "error", err)
		}
		return Attachment{}, f
	}
	if !bytes.Contains(data, []byte(portindex.Capability)) {
		return Attachment{}, f
	}
	a := c.parse(data)
	if len(a.Claims) > 0 {
		f.id, f.ours = within(name, a.ContainerID), c.onRecord(a.ContainerID)
	}
	return a, f
}

// within returns an ID as a part of the file's name, which has it. It then needs no memory.
func within(name, id string) string {
	if i := strings.Index(name, id); i >= 0 {
		return name[i : i+len(id)]
	}
	return strings.Clone(id)
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
	claims := portindex.Claims(&record.Attachment{Config: content.Config, Capabilities: content.CapabilityArgs}, &c.configs)
	return Attachment{
		ContainerID: content.ContainerID, Network: content.NetworkName, IfName: content.IfName, NetNS: content.NetNS,
		Claims: claims,
	}
}
